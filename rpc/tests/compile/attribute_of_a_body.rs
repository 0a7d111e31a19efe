#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Echo {
    #[tracing::instrument]
    async fn echo(&self, cx: &gimmal_rpc::Cx) -> u8;
}

fn main() {}
