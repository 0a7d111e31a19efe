use gimmal_rpc::Cx;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Order;

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Wrong {
    async fn pay(&self, cx: &Cx, order: Order) -> u64;
}

fn main() {}
