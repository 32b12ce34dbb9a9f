//! Compares the kinds of addresses with a second list of networks.

use proptest::prelude::*;

use super::*;

/// Returns true for public addresses, by a list of networks.
pub(crate) fn is_outside(address: IpAddr) -> bool {
    const INSIDE_V4: &str = "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 \
                             192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 \
                             224.0.0.0/4 240.0.0.0/4";
    const INSIDE_V6: &str = "2001::/23 2001:db8::/32 2002::/16 3fff::/20";
    let within = |networks: &str, bits: u128, width: u32, parse: &dyn Fn(&str) -> u128| {
        networks.split_whitespace().any(|network| {
            let (start, length) = network.split_once('/').unwrap();
            let shift = width - length.parse::<u32>().unwrap();
            bits >> shift == parse(start) >> shift
        })
    };
    let v4 = |text: &str| u128::from(text.parse::<Ipv4Addr>().unwrap().to_bits());
    let v6 = |text: &str| text.parse::<Ipv6Addr>().unwrap().to_bits();
    match address {
        IpAddr::V4(address) => !within(INSIDE_V4, u128::from(address.to_bits()), 32, &v4),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            let carried = within("::/96 ::ffff:0:0/96 ::ffff:0:0:0/96 64:ff9b::/96", bits, 128, &v6);
            if carried {
                return is_outside(IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(bits & 0xffff_ffff).unwrap())));
            }
            within("2000::/3", bits, 128, &v6) && !within(INSIDE_V6, bits, 128, &v6)
        }
    }
}

pub(crate) fn any_address() -> impl Strategy<Value = IpAddr> {
    let v4 = prop_oneof![
        any::<u32>(),
        any::<u16>().prop_map(|low| 0x7f00_0000 | u32::from(low)),
        any::<u16>().prop_map(|low| 0xa9fe_0000 | u32::from(low)),
        any::<u16>().prop_map(|low| 0xc0a8_0000 | u32::from(low)),
        any::<u16>().prop_map(|low| 0x5db8_0000 | u32::from(low)),
    ];
    let prefix = prop_oneof![
        Just(0_u128),
        Just(0xffff_u128 << 32),
        Just(0xffff_u128 << 48),
        Just(0x0064_ff9b_u128 << 96),
        Just(0x0064_ff9b_0001_u128 << 80),
        Just(0x2002_u128 << 112),
        Just(0x2001_u128 << 112),
        Just(0x2001_0db8_u128 << 96),
        Just(0x2606_u128 << 112),
        Just(0xfe80_u128 << 112),
        Just(0xfd00_u128 << 112),
        any::<u128>().prop_map(|bits| bits >> 64 << 64),
    ];
    let v6 = (prefix, v4.clone()).prop_map(|(prefix, v4)| Ipv6Addr::from_bits(prefix | u128::from(v4)));
    prop_oneof![v4.prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))), v6.prop_map(IpAddr::V6)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_called_public_lies_in_no_network_that_is_not(address in any_address()) {
        prop_assert_eq!(address_kind(address) == AddressKind::Public, is_outside(address), "{}", address);
    }
}
