//! Times of passes, scaled and of devices that wait for each other.

use super::*;

fn passes() -> [Pass; 3] {
    let (mut prefill, mut decode) = (Pass::default(), Pass::default());
    prefill.add_prefill(512, 128);
    decode.add_decode(1_000);
    let mut both = prefill;
    both.add_decode(1_000);
    [prefill, decode, both]
}

fn roofline() -> Roofline {
    Roofline {
        body_parameters: 1e9,
        head_parameters: 1e8,
        attention_flops: 1e6,
        kv_bytes: 1e5,
        flops: 1e14,
        bandwidth: 1e12,
        attention_share: 0.5,
        prefill_reads_context: true,
        pass_seconds: 0.002,
        sequence_seconds: 1e-5,
        exchange_seconds: 0.0,
    }
}

pub fn close(one: f64, other: f64) {
    assert!((one - other).abs() < 1e-9, "{one} {other}");
}

#[test]
fn scales_hold_for_prompts_and_for_decodes_and_add_up_in_one_pass() {
    for timing in [a_second(), Timing::Roofline(roofline())] {
        let scaled = Timing::Scaled(Box::new(Scaled {
            timing: timing.clone(),
            prefill: 3.0,
            decode: 2.0,
        }));
        let [prefill, decode, both] = passes();
        close(scaled.seconds(&prefill), 3.0 * timing.seconds(&prefill));
        close(scaled.seconds(&decode), 2.0 * timing.seconds(&decode));
        let more = timing.seconds(&both) - timing.seconds(&decode);
        let expected = 2.0 * timing.seconds(&decode) + 3.0 * more;
        close(scaled.seconds(&both), expected);
    }
}

#[test]
fn devices_exchange_sums_of_every_new_token() {
    let alone = Timing::Roofline(roofline());
    let together = Timing::Roofline(Roofline {
        exchange_seconds: 1e-3,
        ..roofline()
    });
    for (pass, tokens) in passes().iter().zip([512.0, 1.0, 513.0]) {
        let lost = together.seconds(pass) - alone.seconds(pass);
        close(lost, 1e-3 * tokens);
    }
}
