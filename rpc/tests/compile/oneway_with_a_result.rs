use gimmal_rpc::Cx;

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Wrong {
    #[oneway]
    async fn greet(&self, cx: &Cx) -> String;
}

fn main() {}
