#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Wide {
    #[rustfmt::skip]
    async fn wide(
        &self, cx: &gimmal_rpc::Cx, a0: u8, a1: u8, a2: u8, a3: u8, a4: u8, a5: u8, a6: u8, a7: u8, a8: u8, a9: u8, a10: u8, a11: u8,
        a12: u8, a13: u8, a14: u8, a15: u8, one_more: u8,
    ) -> u8;
}

fn main() {}
