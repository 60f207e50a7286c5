//! Text form of policies: `name` and `name{1,2}`.

/// Splits a text into the name and the numbers in braces. Returns `None` when the text is not of
/// that form. Numbers are plain decimal: no sign, no spaces, at most `N` of them.
pub(crate) fn split<const N: usize>(text: &str) -> Option<(&str, usize, [u64; N])> {
    let mut numbers = [0; N];
    let Some((name, rest)) = text.split_once('{') else {
        return Some((text, 0, numbers));
    };
    let mut count = 0;
    for number in rest.strip_suffix('}')?.split(',') {
        // `parse` alone would accept a plus sign.
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *numbers.get_mut(count)? = number.parse().ok()?;
        count += 1;
    }
    Some((name, count, numbers))
}

/// Returns the number if it is between 1 and `max`.
pub(crate) fn positive(number: u64, max: u32) -> Option<u32> {
    u32::try_from(number).ok().filter(|number| (1..=max).contains(number))
}

/// Implements serde through the text of `Display` and `FromStr`.
macro_rules! serde_as_text {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use serde_as_text;

/// Gives a policy of few words its text: `Display`, `FromStr` and serde. Errors call the policy
/// `$key` and list the words.
macro_rules! words {
    (
        $type:ident,
        $key:literal,
        $first:ident => $word:literal,
        $($other:ident => $words:literal),+
    ) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    Self::$first => $word,
                    $(Self::$other => $words,)+
                })
            }
        }

        impl std::str::FromStr for $type {
            type Err = crate::Error;

            fn from_str(value: &str) -> Result<Self, crate::Error> {
                const EXPECTED: &str = $crate::text::words!(@list $word, $($words),+);
                match value {
                    $word => Ok(Self::$first),
                    $($words => Ok(Self::$other),)+
                    _ => Err(crate::Error::value($key, value, EXPECTED)),
                }
            }
        }

        $crate::text::serde_as_text!($type);
    };
    (@list $first:literal, $second:literal) => { concat!("`", $first, "` or `", $second, "`") };
    (@list $first:literal, $second:literal, $third:literal) => {
        concat!("`", $first, "`, `", $second, "` or `", $third, "`")
    };
}
pub(crate) use words;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_split() {
        assert_eq!(split::<2>("none"), Some(("none", 0, [0, 0])));
        assert_eq!(split::<2>("fixed{16,500}"), Some(("fixed", 2, [16, 500])));
        assert_eq!(split::<2>("window{100}"), Some(("window", 1, [100, 0])));
        let largest = format!("a{{{}}}", u64::MAX);
        assert_eq!(split::<1>(&largest), Some(("a", 1, [u64::MAX])));
        for wrong in [
            "a{",
            "a{}",
            "a{1",
            "a{1,}",
            "a{,1}",
            "a{1}x",
            "a{ 1}",
            "a{+1}",
            "a{-1}",
            "a{0x1}",
            "a{1,2,3}",
            "a{18446744073709551616}",
            "a{{1}}",
        ] {
            assert_eq!(split::<2>(wrong), None, "{wrong}");
        }
    }
}
