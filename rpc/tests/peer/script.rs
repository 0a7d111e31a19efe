//! What the layers above would say: messages of calls and streams, bulk, control frames; mostly true.

use gimmal_rpc::{
    batch::ITEM_BYTES,
    engine::{
        proto::{
            bulk::LoanId,
            wire::{self, BULK_BYTES, control, message_tag, put_bulk},
        },
        transport::{Offer, Tag},
    },
    frame::{BARE_REQUEST, BARE_RESPONSE, Flags, Kind, REQUESTS, RESPONSES, RequestHead, ResponseHead},
    id::CallId,
};
use gimmal_testkit::{Choices, Script};

/// A method that the victim may have: id and signature.
pub type Method = (u32, u32);

const REQUEST: u16 = Kind::Request.with(Flags::NONE);
const RESPONSE: u16 = Kind::Response.with(Flags::NONE);
const NOTED_REQUEST: u16 = Kind::Request.with(Flags::METADATA);
const NOTED_RESPONSE: u16 = Kind::Response.with(Flags::METADATA);
const ONE_WAY: u16 = Kind::Request.with(Flags::ONE_WAY);
const CANCEL: u16 = Kind::Cancel.with(Flags::NONE);
const UP_CREDIT: u16 = Kind::Credit.with(Flags::NONE);
const DOWN_CREDIT: u16 = Kind::Credit.with(Flags::DOWN);

const UP_STOP: u16 = Kind::Credit.with(Flags::ABORT);
const DOWN_STOP: u16 = Kind::Credit.with(Flags::DOWN.and(Flags::ABORT));

const KINDS: [u16; 22] = [
    REQUEST,
    RESPONSE,
    NOTED_REQUEST,
    NOTED_RESPONSE,
    Kind::Request.with(Flags::LARGE),
    Kind::Response.with(Flags::LARGE),
    CANCEL,
    ONE_WAY,
    Kind::Item.with(Flags::NONE),
    Kind::Item.with(Flags::DOWN),
    Kind::End.with(Flags::NONE),
    Kind::End.with(Flags::ABORT),
    Kind::End.with(Flags::DOWN),
    Kind::End.with(Flags::DOWN.and(Flags::ABORT)),
    UP_CREDIT,
    DOWN_CREDIT,
    UP_STOP,
    DOWN_STOP,
    BARE_REQUEST,
    BARE_RESPONSE,
    REQUESTS,
    RESPONSES,
];

/// Whether bulk may be on offer beside a message of this kind.
fn may_have_bulk(kind: u16) -> bool {
    matches!(Kind::parse(kind), Ok((Kind::Request | Kind::Response, flags)) if !flags.has(Flags::NO_HEAD))
}

/// A block of metadata, mostly an empty one.
fn metadata(choices: &mut Choices) -> Vec<u8> {
    if choices.once_in(4) {
        return choices.bytes(48);
    }
    vec![0; 16]
}

/// Speaks the engine's frames, and calls in them.
#[derive(Debug, Default)]
pub struct Speaker {
    /// Methods to call.
    pub methods: Vec<Method>,
    /// How often a message is spoiled: once in so many; 0: never.
    pub spoil_once_in: u64,
    /// What bulk may be offered in.
    pools: Vec<(u64, u64)>,
    /// Loans of the victim that it was not told to be done.
    loans: Vec<u32>,
    /// Calls that were made.
    calls: Vec<CallId>,
    loan_id: u32,
    generation: u32,
}

impl Speaker {
    /// One that calls `methods`.
    pub fn new(methods: Vec<Method>) -> Self {
        Self { methods, spoil_once_in: 500, ..Self::default() }
    }

    fn call(&mut self, choices: &mut Choices) -> CallId {
        if choices.once_in(2) && !self.calls.is_empty() {
            return self.calls[choices.index(self.calls.len())];
        }
        self.generation = self.generation.wrapping_add(1);
        let slot = u32::try_from(choices.below(300)).unwrap();
        let id = CallId { slot, generation: self.generation };
        if self.calls.len() < 64 {
            self.calls.push(id);
        } else {
            let at = choices.index(64);
            self.calls[at] = id;
        }
        id
    }

    /// A message of the calls' layer: kind, aux, body.
    pub fn message(&mut self, choices: &mut Choices) -> (u16, u64, Vec<u8>) {
        let kind = if choices.once_in(2) { REQUEST } else { choices.pick(&KINDS) };
        let mut id = self.call(choices);
        let mut body = Vec::new();
        match kind {
            kind if kind & 0xff == 1 && !matches!(kind, BARE_REQUEST | REQUESTS) => {
                let number = |choices: &mut Choices| u32::try_from(choices.number() & 0xffff_ffff).unwrap();
                let (method, signature) = if self.methods.is_empty() || choices.once_in(16) {
                    (number(choices), number(choices))
                } else {
                    self.methods[choices.index(self.methods.len())]
                };
                let deadline_us = u32::try_from(choices.below(5000)).unwrap();
                let window = u32::try_from(choices.below(64)).unwrap();
                body.extend(RequestHead { method, signature, deadline_us, window }.encode());
                if kind == NOTED_REQUEST {
                    body.extend(metadata(choices));
                }
                if kind == REQUEST && choices.once_in(8) {
                    id.generation = id.generation.wrapping_add(1000);
                }
            }
            RESPONSE | NOTED_RESPONSE => {
                let heads = [ResponseHead::Ok, ResponseHead::App, ResponseHead::Mismatch];
                body.extend(choices.pick(&heads).encode());
                if kind == NOTED_RESPONSE {
                    body.extend(metadata(choices));
                }
            }
            UP_CREDIT | DOWN_CREDIT | UP_STOP | DOWN_STOP => {
                body.extend(&choices.below(4000).to_le_bytes()[..4]);
            }
            REQUESTS | RESPONSES => {
                for _ in 0..choices.below(10) {
                    let (id, mut payload) = (self.call(choices), choices.bytes(48));
                    let word = u64::from(id.slot & 0xffff)
                        | (payload.len() as u64) << 16
                        | u64::from(id.generation) << 32;
                    body.extend(word.to_le_bytes());
                    payload.resize(payload.len().next_multiple_of(ITEM_BYTES), 0);
                    body.extend(payload);
                }
                return (kind, 0, body);
            }
            _ => {}
        }
        if !matches!(kind, CANCEL | UP_CREDIT | DOWN_CREDIT | UP_STOP | DOWN_STOP) {
            body.extend(choices.bytes(48));
        }
        (kind, id.aux(), body)
    }

    fn bulk(&mut self, choices: &mut Choices) -> Offer {
        self.loan_id = self.loan_id.wrapping_add(1);
        let (key, bytes) = match choices.index(self.pools.len() + 1) {
            at if at < self.pools.len() => self.pools[at],
            _ => (0, 4096),
        };
        let address = choices.below(bytes);
        let len = choices.below(bytes - address + 1);
        if choices.once_in(64) {
            return Offer { address: choices.number(), key: choices.number(), len: choices.number() };
        }
        Offer { address, key, len }
    }

    fn control(&mut self, choices: &mut Choices, payload: &mut Vec<u8>) -> Tag {
        let (kind, first, second) = match choices.below(64) {
            0 if choices.once_in(32) => (choices.pick(&[wire::Kind::Goodbye, wire::Kind::GoodbyeAck]), 0, 0),
            0..8 => (wire::Kind::BulkDone, choices.number() & 0xff_ffff, 0),
            8..24 if !self.loans.is_empty() => {
                (wire::Kind::BulkDone, self.loans.swap_remove(choices.index(self.loans.len())).into(), 0)
            }
            8..40 => (wire::Kind::Ping, choices.number(), 0),
            _ => (wire::Kind::Pong, choices.number(), choices.number()),
        };
        payload.extend(control(first, second));
        kind.tag()
    }

    /// A frame of the engine.
    pub fn frame(&mut self, choices: &mut Choices, payload: &mut Vec<u8>) -> Tag {
        let mut tag = match choices.below(16) {
            0..3 => self.control(choices, payload),
            what => {
                let (kind, aux, body) = self.message(choices);
                payload.extend(aux.to_le_bytes());
                let has_bulk = what == 3 && (may_have_bulk(kind) || choices.once_in(8));
                if has_bulk {
                    let mut bulk = [0; BULK_BYTES];
                    let offer = self.bulk(choices);
                    put_bulk(&mut bulk, LoanId::from_bits(self.loan_id), 0, &offer);
                    payload.extend(bulk);
                }
                payload.extend(body);
                message_tag(kind, has_bulk)
            }
        };
        if self.spoil_once_in > 0 && choices.once_in(self.spoil_once_in) {
            if choices.once_in(4) {
                tag.0 ^= 1 << choices.below(32);
            } else {
                choices.spoil(payload);
            }
        }
        tag
    }
}

impl Script for Speaker {
    fn connected(&mut self) {
        self.pools.clear();
        self.loans.clear();
        self.calls.clear();
    }

    fn passed(&mut self, id: u64, bytes: u64) {
        self.pools.push((id, bytes));
    }

    fn write(&mut self, choices: &mut Choices, payload: &mut Vec<u8>) -> Tag {
        self.frame(choices, payload)
    }

    fn hear(&mut self, tag: Tag, payload: &[u8]) {
        if tag.0 & 0x1ff == 0x101
            && let Some(id) = payload.get(8..12)
            && self.loans.len() < 64
        {
            self.loans.push(u32::from_le_bytes(id.try_into().unwrap()));
        }
    }
}
