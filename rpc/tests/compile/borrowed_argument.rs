use gimmal_rpc::Cx;

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Wrong {
    async fn greet(&self, cx: &Cx, name: &str) -> String;
}

fn main() {}
