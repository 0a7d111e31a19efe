use gimmal_rpc::{Bulk, Cx, Sink, Stream};

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Wrong {
    async fn greet(&self, cx: &Cx, one: Stream<u8>, two: Stream<u8>, out: Sink<u8>, all: Bulk);
}

fn main() {}
