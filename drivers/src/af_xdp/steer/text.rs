//! Rules as users write them.
//!
//! Owns: the names. Never does: decide what a rule may ask; that is `Rule::checked`. Invariant: what is written
//! reads back as the same rule.

use std::{fmt, net::IpAddr, str::FromStr};

use super::{ARP, ICMP, ICMP6, IPV4, IPV6, Prefix, Rule, SCTP, Steering, TCP, Traffic, UDP};
use crate::DriverError;

/// Kinds of packets that have a name.
const NAMES: [(&str, Traffic); 8] = [
    ("arp", Traffic::Ethertype(ARP)),
    ("ip", Traffic::Ethertype(IPV4)),
    ("ip6", Traffic::Ethertype(IPV6)),
    ("tcp", Traffic::Protocol(TCP)),
    ("udp", Traffic::Protocol(UDP)),
    ("sctp", Traffic::Protocol(SCTP)),
    ("icmp", Traffic::Protocol(ICMP)),
    ("icmp6", Traffic::Protocol(ICMP6)),
];

/// What a rule looks like, for messages.
const FORM: &str = "arp, ip, ip6, tcp, udp, sctp, icmp, icmp6, protoN (0 to 255) or 0xHHHH (an ethertype), then \
                    @ADDRESS[/BITS] and :PORT, as in udp:7, ip@10.0.0.0/24, tcp@[fd00::2]:80, udp@[fd00::/64]; several joined by +; \
                    or all, or none";

impl FromStr for Steering {
    type Err = DriverError;

    fn from_str(text: &str) -> Result<Self, DriverError> {
        let steering = match text {
            "all" => Self::All,
            "none" => Self::Only(vec![]),
            rules => Self::Only(rules.split('+').map(Rule::from_str).collect::<Result<_, _>>()?),
        };
        steering.check()?;
        Ok(steering)
    }
}

impl fmt::Display for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Only(rules) if rules.is_empty() => f.write_str("none"),
            Self::Only(rules) => {
                let rules: Vec<_> = rules.iter().map(Rule::to_string).collect();
                f.write_str(&rules.join("+"))
            }
        }
    }
}

impl FromStr for Rule {
    type Err = DriverError;

    fn from_str(text: &str) -> Result<Self, DriverError> {
        let refuse = |problem: String, allowed: &str| DriverError::Rule {
            rule: text.to_owned(),
            problem,
            allowed: allowed.to_owned(),
        };
        let (kind, to, port) = parts(text).map_err(|problem| refuse(problem.to_owned(), FORM))?;
        let traffic = traffic(kind).ok_or_else(|| refuse(format!("unknown kind '{kind}'"), FORM))?;
        if let Some(to) = to.filter(|to| to.contains(':') && traffic.has_ports() && !text.contains('[')) {
            let problem = format!("whether the end of '{to}' is a port can't be told");
            return Err(refuse(problem, &format!("brackets: {kind}@[ADDRESS], or {kind}@[ADDRESS]:PORT")));
        }
        let to = to.map(|to| prefix(to).ok_or_else(|| refuse(format!("'{to}' is no address"), FORM)));
        let port = port.map(|port| {
            let number = port.parse().ok().filter(|_| port.starts_with(|first: char| first.is_ascii_digit()));
            number.ok_or_else(|| refuse(format!("'{port}' is no port"), "a port from 1 to 65535"))
        });
        let rule = Self { traffic, to: to.transpose()?, port: port.transpose()? };
        // As the user wrote it, which is not always how it would be printed.
        rule.checked().map_err(|error| match error {
            DriverError::Rule { problem, allowed, .. } => refuse(problem, &allowed),
            other => other,
        })
    }
}

/// Kind, destination and port; or what is wrong with the brackets.
fn parts(rule: &str) -> Result<(&str, Option<&str>, Option<&str>), &'static str> {
    let Some((kind, rest)) = rule.split_once('@') else {
        let (kind, port) = rule.split_once(':').map_or((rule, None), |(kind, port)| (kind, Some(port)));
        return Ok((kind, None, port));
    };
    if let Some(rest) = rest.strip_prefix('[') {
        let (to, rest) = rest.split_once(']').ok_or("the [ has no ]")?;
        if rest.starts_with('/') {
            return Err("the bits go inside of the brackets: [fd00::/64]");
        }
        let port = rest.strip_prefix(':');
        if port.is_none() && !rest.is_empty() {
            return Err("behind the ] there can be :PORT only");
        }
        return Ok((kind, Some(to), port));
    }
    // Without brackets, an IPv6 address has all the colons.
    match rest.split_once(':') {
        Some((to, port)) if !port.contains(':') => Ok((kind, Some(to), Some(port))),
        _ => Ok((kind, Some(rest), None)),
    }
}

fn traffic(kind: &str) -> Option<Traffic> {
    let digits = |text: &str| text.starts_with(|first: char| first.is_ascii_hexdigit()); // No sign, not empty.
    if let Some((_, traffic)) = NAMES.iter().find(|(name, _)| *name == kind) {
        Some(*traffic)
    } else if let Some(number) = kind.strip_prefix("proto").filter(|number| digits(number)) {
        number.parse().ok().map(Traffic::Protocol)
    } else {
        let number = kind.strip_prefix("0x").filter(|number| digits(number))?;
        u16::from_str_radix(number, 16).ok().map(Traffic::Ethertype)
    }
}

fn prefix(text: &str) -> Option<Prefix> {
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().ok()?;
    let whole = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Some(whole), |bits| bits.parse().ok())?;
    Some(Prefix { address, bits })
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (NAMES.iter().find(|(_, traffic)| *traffic == self.traffic), self.traffic) {
            (Some((name, _)), _) => f.write_str(name)?,
            (None, Traffic::Ethertype(ethertype)) => write!(f, "0x{ethertype:04x}")?,
            (None, Traffic::Protocol(protocol)) => write!(f, "proto{protocol}")?,
        }
        match (self.to, self.port) {
            (Some(to), Some(port)) if to.address.is_ipv6() => write!(f, "@[{to}]:{port}"),
            (Some(to), Some(port)) => write!(f, "@{to}:{port}"),
            (Some(to), None) if to.address.is_ipv6() && self.traffic.has_ports() => write!(f, "@[{to}]"),
            (Some(to), None) => write!(f, "@{to}"),
            (None, Some(port)) => write!(f, ":{port}"),
            (None, None) => Ok(()),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = if self.address.is_ipv4() { 32 } else { 128 };
        if self.bits == whole {
            write!(f, "{}", self.address)
        } else {
            write!(f, "{}/{}", self.address, self.bits)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        for text in [
            "all",
            "none",
            "arp",
            "ip",
            "ip6",
            "tcp",
            "udp",
            "sctp",
            "icmp",
            "icmp6",
            "proto47",
            "0x88b5",
            "udp:7",
            "udp@10.0.0.2:7",
            "tcp@[fd00::2]:80",
            "tcp@[fd00::/64]:80",
            "udp@[fd00::2]",
            "ip@10.0.0.0/24",
            "udp@0.0.0.0/0:7",
            "ip6@fd00::/64",
            "ip6@fd00::2",
            "icmp@10.0.0.2",
            "arp@10.0.0.2",
            "icmp6@::/0",
            "proto50@10.0.0.0/8",
            "arp+icmp+udp:7+0x88b5",
        ] {
            assert_eq!(text.parse::<Steering>().unwrap().to_string(), text);
        }
        // Other ways to write the same.
        for (text, canonical) in [
            ("0x0800", "ip"),
            ("0x806", "arp"),
            ("proto6:22", "tcp:22"),
            ("ip@10.0.0.2/32", "ip@10.0.0.2"),
            ("udp@[10.0.0.2]:7", "udp@10.0.0.2:7"),
            ("ip6@[fd00::2]", "ip6@fd00::2"),
            ("proto17@[fd00::2]", "udp@[fd00::2]"),
        ] {
            assert_eq!(text.parse::<Steering>().unwrap().to_string(), canonical);
        }
        let most = vec!["udp:7"; Steering::MAX_RULES].join("+");
        assert_eq!(most.parse::<Steering>().unwrap().to_string(), most);
    }

    #[test]
    fn what_no_packet_can_have_is_refused_with_what_is_allowed() {
        let many = vec!["udp:7"; Steering::MAX_RULES + 1].join("+");
        for (text, problem, allowed) in [
            ("", "''", "arp, ip, ip6"),
            ("udp+", "''", "arp, ip, ip6"),
            ("ssh", "unknown kind 'ssh'", "udp:7"),
            ("all+arp", "unknown kind 'all'", "or all, or none"),
            ("proto256", "unknown kind 'proto256'", "protoN (0 to 255)"),
            ("proto+7", "unknown kind 'proto'", "protoN"),
            ("0x", "unknown kind '0x'", "0xHHHH"),
            ("0x12345", "unknown kind", "0xHHHH"),
            ("0x05ff", "0x05ff is a length", "0x0600 to 0xffff"),
            ("0x8100", "0x8100 is a VLAN tag", "the ethertype behind the tag"),
            ("0x88a8", "0x88a8 is a VLAN tag", "the ethertype behind the tag"),
            ("udp:0", "port 0 is nobody's", "1 to 65535"),
            ("udp:65536", "'65536' is no port", "1 to 65535"),
            ("udp:-1", "'-1' is no port", "1 to 65535"),
            ("udp:", "'' is no port", "1 to 65535"),
            ("icmp:7", "such packets have no port", "tcp, udp or sctp"),
            ("ip@10.0.0.2:7", "such packets have no port", "tcp, udp or sctp"),
            ("udp@", "'' is no address", "@ADDRESS[/BITS]"),
            ("udp@host:7", "'host' is no address", "@ADDRESS[/BITS]"),
            ("udp@10.0.0.2/x", "'10.0.0.2/x' is no address", "@ADDRESS[/BITS]"),
            ("udp@[fd00::2", "the [ has no ]", "[fd00::2]"),
            ("udp@[fd00::2]7", "behind the ] there can be :PORT only", "[fd00::2]"),
            ("udp@[fd00::]/64:5", "the bits go inside of the brackets: [fd00::/64]", "[fd00::2]"),
            ("ip6@[fd00::]/64", "the bits go inside of the brackets", "[fd00::2]"),
            (
                "tcp@fd00::2:80",
                "whether the end of 'fd00::2:80' is a port can't be told",
                "tcp@[ADDRESS]:PORT",
            ),
            ("udp@fd00::2", "can't be told", "udp@[ADDRESS], or"),
            ("ip@10.0.0.0/33", "does not have 33 bits", "/0 to /32"),
            ("ip6@fd00::/129", "does not have 129 bits", "/0 to /128"),
            ("ip@10.0.0.5/24", "bits set beyond its first 24", "10.0.0.0/24, or 10.0.0.5 alone"),
            ("ip6@fd00::5/64", "bits set beyond its first 64", "fd00::/64, or fd00::5 alone"),
            ("ip@fd00::2", "IPv4 has no address fd00::2", "such as 10.0.0.2"),
            ("icmp6@10.0.0.2", "IPv6 has no address 10.0.0.2", "such as fd00::2"),
            ("0x88b5@10.0.0.2", "such packets have no IP address", "ip, ip6, tcp"),
            ("arp@fd00::2", "IPv4 has no address fd00::2", "such as 10.0.0.2"),
            (&many, "65 rules are too many", "up to 64 rules"),
        ] {
            let message = text.parse::<Steering>().unwrap_err().to_string();
            assert!(message.contains(problem) && message.contains(allowed), "{text}: {message}");
            assert!(message.starts_with("steering rule '") && !message.contains('\n'));
        }
        let unnamed = Rule::protocol(ICMP).port(7).unwrap_err().to_string();
        assert!(unnamed.starts_with("steering rule 'icmp:7': such packets have no port"), "{unnamed}");
    }
}
