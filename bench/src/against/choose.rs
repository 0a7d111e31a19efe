//! The contenders of a run: its own baselines, and the requested programs.

use std::path::Path;

use super::{
    Against, Contender, Goal, Setting,
    exchange::Exchange,
    iperf3::{self, Iperf3},
    libfabric::{self, PingPong},
    own::Bare,
    perftest::{self, Operation, Perftest},
    program::is_installed,
    sockets::{Kind, Meeting, Sockets},
    ucx::{self, Transport, Ucx},
    ucx_echo::{self, UcxEcho},
};
use crate::{
    clock::Relax,
    error::BenchError,
    plan::{Mode, Plan, ProviderName},
    record::Row,
};

/// What the contenders are chosen by.
#[derive(Clone, Debug)]
pub(crate) struct Choice<'a> {
    /// The requested contenders.
    pub(crate) against: &'a [Against],
    /// What is compared.
    pub(crate) goal: Goal,
    /// How the bytes travel.
    pub(crate) provider: ProviderName,
    /// What is measured.
    pub(crate) plan: &'a Plan,
    /// The device's address, when there is one.
    pub(crate) host: Option<String>,
}

/// Those who were chosen, and a row for each who cannot come.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    /// In the order of the report.
    pub(crate) contenders: Vec<Box<dyn Contender>>,
    /// Contenders that are not available, and why.
    pub(crate) absent: Vec<Row>,
}

impl Choice<'_> {
    /// Where the server finds the sockets it is to connect to.
    pub(crate) fn meetings(&self, folder: &Path) -> Result<Vec<Meeting>, BenchError> {
        let mut meetings = Vec::new();
        for against in self.against {
            match against {
                Against::Tcp => meetings.push(Meeting::tcp(Kind::Plain)?),
                Against::TcpEpoll => meetings.push(Meeting::tcp(Kind::Epoll)?),
                Against::TcpBlocking => meetings.push(Meeting::tcp(Kind::Blocking)?),
                Against::TcpSingle => meetings.push(Meeting::tcp(Kind::Single)?),
                Against::Uds => meetings.push(Meeting::uds(folder)?),
                _ => {}
            }
        }
        Ok(meetings)
    }

    /// Everyone; the server's ends of `meetings` are connected or on their way.
    pub(crate) fn contenders(&self, meetings: Vec<Meeting>) -> Result<Chosen, BenchError> {
        let mut chosen = Chosen::default();
        let relax = Relax::for_cores(self.plan.client_core, self.plan.server_core);
        if self.goal == Goal::Rate {
            chosen.contenders.push(Box::new(Bare::Ring(self.plan.window)));
            chosen.contenders.push(Box::new(Bare::Frames(self.plan.window)));
        }
        if self.plan.mode == Mode::Handoff && self.goal == Goal::Latency {
            chosen.contenders.push(Box::new(Exchange::start(self.plan.client_core, relax)?));
        }
        for meeting in meetings {
            let bytes = if self.goal == Goal::Bandwidth { self.plan.block } else { self.plan.bytes };
            let relax = (self.plan.mode == Mode::Inline).then_some(relax);
            let stream = meeting.accept()?;
            chosen.contenders.push(Box::new(Sockets::new(
                stream,
                self.goal,
                bytes,
                self.plan.window,
                relax,
            )?));
        }
        for against in self.against {
            match against {
                Against::Ucx => self.ucx(&mut chosen),
                Against::Libfabric => self.libfabric(&mut chosen),
                Against::Perftest => self.perftest(&mut chosen),
                Against::Iperf3 => self.iperf3(&mut chosen),
                Against::Tcp | Against::TcpEpoll | Against::TcpBlocking => {}
                Against::TcpSingle | Against::Uds => {}
            }
        }
        Ok(chosen)
    }

    fn setting(&self) -> Setting {
        let plan = self.plan;
        Setting {
            goal: self.goal,
            bytes: if self.goal == Goal::Bandwidth { plan.block } else { plan.bytes },
            window: plan.window,
            client_core: plan.client_core,
            server_core: plan.server_core,
            host: self.host.clone(),
        }
    }

    fn ucx(&self, chosen: &mut Chosen) {
        if !is_installed(ucx::PROGRAM) {
            return chosen.absent(ucx::PROGRAM, &missing(ucx::PACKAGE));
        }
        let transport = match (self.provider, &self.host) {
            (ProviderName::Shm, _) => Transport::Posix,
            (ProviderName::Tcp, _) => return chosen.absent(ucx::PROGRAM, "is not measured over TCP"),
            (ProviderName::Verbs, Some(host)) => match device_of(host) {
                Some(Device { is_iwarp: true, .. }) => {
                    return chosen.absent(ucx::PROGRAM, "UCX has no iWARP");
                }
                Some(Device { name, gid, .. }) => Transport::Verbs { device: name, host: host.clone(), gid },
                None => return chosen.absent(ucx::PROGRAM, "no RDMA device has the server's address"),
            },
            (ProviderName::Verbs, None) => return chosen.absent(ucx::PROGRAM, "the server has no address"),
        };
        if self.goal == Goal::Rate && transport == Transport::Posix {
            match UcxEcho::build(self.setting()) {
                Ok(echo) => chosen.contenders.push(Box::new(echo)),
                Err(why) => chosen.absent(ucx_echo::NAME, &why),
            }
        }
        chosen.contenders.push(Box::new(Ucx { setting: self.setting(), transport }));
    }

    fn libfabric(&self, chosen: &mut Chosen) {
        if self.goal != Goal::Latency {
            chosen.absent(libfabric::PROGRAM, "measures one transfer at a time only: see lat")
        } else if is_installed(libfabric::PROGRAM) {
            let provider = match self.provider {
                ProviderName::Shm => "shm",
                ProviderName::Tcp => "tcp",
                ProviderName::Verbs => "verbs",
            };
            chosen.contenders.push(Box::new(PingPong::new(self.setting(), provider)));
        } else {
            chosen.absent(libfabric::PROGRAM, &missing(libfabric::PACKAGE));
        }
    }

    fn iperf3(&self, chosen: &mut Chosen) {
        if self.goal != Goal::Bandwidth || self.provider == ProviderName::Verbs {
            chosen.absent(iperf3::PROGRAM, "measures bandwidth over TCP only: see bw");
        } else if is_installed(iperf3::PROGRAM) {
            chosen.contenders.push(Box::new(Iperf3 { setting: self.setting() }));
        } else {
            chosen.absent(iperf3::PROGRAM, &missing(iperf3::PACKAGE));
        }
    }

    fn perftest(&self, chosen: &mut Chosen) {
        let operations: &[Operation] = match self.goal {
            Goal::Latency => &[Operation::SendLat, Operation::WriteLat],
            Goal::Rate => &[Operation::SendBw],
            // A READ has a price of its own: who moves as many of them is the nearer neighbour.
            Goal::Bandwidth if self.plan.block > perftest::PIECE_BYTES => {
                &[Operation::ReadBw, Operation::ReadPieces]
            }
            Goal::Bandwidth => &[Operation::ReadBw],
        };
        for operation in operations {
            let program = operation.program();
            if self.provider != ProviderName::Verbs || self.host.is_none() {
                chosen.absent(program, "needs an RDMA device: see --provider verbs");
            } else if is_installed(program) {
                chosen.contenders.push(Box::new(Perftest { setting: self.setting(), operation: *operation }));
            } else {
                chosen.absent(program, &missing(perftest::PACKAGE));
            }
        }
    }
}

impl Chosen {
    fn absent(&mut self, name: &str, why: &str) {
        self.absent.push(Row { name: name.to_owned(), note: Some(why.to_owned()), ..Row::default() });
    }
}

fn missing(package: &str) -> String {
    format!("not installed: apt-get install {package}")
}

/// An RDMA device.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Device {
    name: String,
    is_iwarp: bool,
    /// Which of its addresses UCX can use; none: whichever it likes.
    gid: Option<usize>,
}

/// The device whose network interface has `host`'s address.
fn device_of(host: &str) -> Option<Device> {
    let say = |program: &str, arguments: &[&str]| {
        let output = std::process::Command::new(program).args(arguments).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (name, interface) = links(&say("rdma", &["link"])?).into_iter().find(|(_, interface)| {
        say("ip", &["-o", "addr", "show", "dev", interface]).is_some_and(|text| has_address(&text, host))
    })?;
    let _ = interface;
    let folder = Path::new("/sys/class/infiniband").join(&name);
    let kind = std::fs::read_to_string(folder.join("node_type")).unwrap_or_default();
    // A device made of software names the interface below it.
    let gid = folder.join("parent").is_file().then(|| plain_gid(&folder.join("ports/1/gids"))).flatten();
    Some(Device { is_iwarp: kind.contains("RNIC"), name, gid })
}

/// The first address in `folder` that is IPv6 of its own. Two sides of UCX meet by datagrams, and on rxe they drop
/// those
/// that came over IPv4.
fn plain_gid(folder: &Path) -> Option<usize> {
    (0..16).find(|number| {
        let gid = std::fs::read_to_string(folder.join(number.to_string())).unwrap_or_default();
        let is_none = gid.chars().all(|digit| matches!(digit, '0' | ':' | '\n'));
        !is_none && !gid.starts_with("0000:0000:0000:0000:0000:ffff:")
    })
}

/// Devices and their network interfaces, from what `rdma link` prints.
fn links(text: &str) -> Vec<(String, String)> {
    let link = |line: &str| {
        let mut words = line.split_whitespace();
        let device = words.nth(1)?.split('/').next()?.to_owned();
        words.find(|word| *word == "netdev")?;
        Some((device, words.next()?.to_owned()))
    };
    text.lines().filter_map(link).collect()
}

/// Whether one line of `ip -o addr` has `host`.
fn has_address(text: &str, host: &str) -> bool {
    text.split_whitespace().any(|word| word.split_once('/').is_some_and(|(address, _)| address == host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_by_their_interfaces() {
        let text = "link rxe0/1 state ACTIVE physical_state LINK_UP netdev v0 \n\
                    link siw0/1 state ACTIVE physical_state LINK_UP netdev w0 \n\
                    link mlx5_0/1 state DOWN physical_state DISABLED\n";
        let pair = |device: &str, interface: &str| (device.to_owned(), interface.to_owned());
        assert_eq!(links(text), [pair("rxe0", "v0"), pair("siw0", "w0")]);
        let text =
            "3: v0    inet 10.77.1.1/24 scope global v0\\       valid_lft forever preferred_lft forever";
        assert!(has_address(text, "10.77.1.1") && !has_address(text, "10.77.1.2"));
    }

    #[test]
    fn the_address_that_ucx_can_use_is_found() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(plain_gid(folder.path()), None);
        let gids = [
            "0000:0000:0000:0000:0000:0000:0000:0000\n",
            "0000:0000:0000:0000:0000:ffff:0a4d:0101\n",
            "fe80:0000:0000:0000:94ac:9fff:fe16:001d\n",
        ];
        for (number, gid) in gids.iter().enumerate() {
            std::fs::write(folder.path().join(number.to_string()), gid).unwrap();
        }
        assert_eq!(plain_gid(folder.path()), Some(2));
    }

    #[test]
    fn who_cannot_come_is_named() {
        let plan = Plan {
            layer: crate::plan::Layer::Engine,
            mode: Mode::Inline,
            bytes: 64,
            window: 32,
            threads: 1,
            block: 0,
            verify: false,
            keeps_accepting: false,
            client_core: 0,
            server_core: 1,
            same_host: true,
        };
        let against = [Against::Libfabric, Against::Perftest];
        let choice = Choice {
            against: &against,
            goal: Goal::Rate,
            provider: ProviderName::Shm,
            plan: &plan,
            host: None,
        };
        let chosen = choice.contenders(vec![]).unwrap();
        assert_eq!(chosen.contenders.len(), 2, "the bare ring and the frames");
        let notes: Vec<String> = chosen.absent.iter().filter_map(|row| row.note.clone()).collect();
        assert!(notes[0].contains("see lat") && notes[1].contains("needs an RDMA device"), "{notes:?}");
    }
}
