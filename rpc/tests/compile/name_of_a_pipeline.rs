#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Echo {
    #[raw]
    fn echo(&self, cx: &gimmal_rpc::Cx, request: &[u8], answer: &mut gimmal_rpc::ResponseWriter<'_>);
    async fn echo_pipeline(&self, cx: &gimmal_rpc::Cx) -> u8;
}

fn main() {}
