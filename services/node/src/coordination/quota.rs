//! How much one service may keep.

use registry::Entry;
use std::collections::BTreeMap;
use wire::coordination::{MAX_STATE_BYTES, MAX_STATE_RECORDS};

/// The registry's records of one service: bytes of each, its key included.
#[derive(Debug)]
pub(super) struct Quota {
    records: BTreeMap<String, usize>,
    bytes: usize,
}

impl Quota {
    pub(super) fn of(prefix: &str, records: &[(String, Entry)]) -> Self {
        let size = |(key, entry): &(String, Entry)| {
            let key = key.strip_prefix(prefix).unwrap_or(key).to_owned();
            let bytes = key.len() + entry.value.len();
            (key, bytes)
        };
        let records: BTreeMap<String, usize> = records.iter().map(size).collect();
        Self { bytes: records.values().sum(), records }
    }

    /// Whether all would still fit with these changes; if not, what to do. Removals are always
    /// taken.
    pub(super) fn check(&self, changes: &[(String, Option<Vec<u8>>)]) -> Result<(), String> {
        let (mut bytes, mut records) = (self.bytes, self.records.len());
        for (key, value) in changes {
            let was = self.records.get(key);
            bytes -= was.copied().unwrap_or(0);
            records -= usize::from(was.is_some());
            if let Some(value) = value {
                bytes += key.len() + value.len();
                records += 1;
            }
        }
        let grows = bytes > self.bytes || records > self.records.len();
        if grows && (bytes > MAX_STATE_BYTES || records > MAX_STATE_RECORDS) {
            return Err(format!(
                "the service would keep {records} records of {bytes} bytes; {MAX_STATE_RECORDS} of {MAX_STATE_BYTES} bytes are the most: remove keys"
            ));
        }
        Ok(())
    }

    /// These changes were made.
    pub(super) fn take(&mut self, changes: Vec<(String, Option<Vec<u8>>)>) {
        for (key, value) in changes {
            let now = value.map(|value| key.len() + value.len());
            self.bytes += now.unwrap_or(0);
            let was = match now {
                Some(now) => self.records.insert(key, now),
                None => self.records.remove(&key),
            };
            self.bytes -= was.unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_and_what_makes_room_never() {
        let mut quota = Quota::of("p/", &[]);
        let value = |bytes: usize| Some(vec![0; bytes]);
        quota.take(vec![("n/a".into(), value(MAX_STATE_BYTES - 3))]);
        assert!(quota.check(&[("n/a".into(), value(5))]).is_ok());
        let refused = quota.check(&[("n/b".into(), value(1))]).unwrap_err();
        assert!(refused.contains("remove keys"), "{refused}");
        assert!(quota.check(&[("n/a".into(), None), ("n/b".into(), value(1))]).is_ok());
        quota.take(vec![("n/a".into(), None)]);
        assert_eq!((quota.bytes, quota.records.len()), (0, 0));
    }

    #[test]
    fn records_are_counted_too() {
        let mut quota = Quota::of("p/", &[]);
        quota.take((0..MAX_STATE_RECORDS).map(|number| (number.to_string(), Some(Vec::new()))).collect());
        assert!(quota.check(&[("n/new".into(), Some(Vec::new()))]).is_err());
        assert!(quota.check(&[("0".into(), Some(b"other".to_vec()))]).is_ok());
    }
}
