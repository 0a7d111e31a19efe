use gimmal_rpc::{Cx, Raw};

struct Number;

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Wrong {
    #[codec(Raw)]
    async fn count(&self, cx: &Cx, number: Number) -> Vec<u8>;
}

fn main() {}
