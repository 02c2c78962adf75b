//! Names that the topology gives to the sockets that a domain mounts: answered to that domain, and
//! asked of nobody.

use crate::answer::{Answer, Question};
use crate::name;
use crate::query;
use crate::service::Directory;
use crate::tenant::TenantId;
use hickory_proto::rr::rdata::{A, PTR};
use hickory_proto::rr::{RData, Record, RecordType};

/// How long such an answer may be remembered by who asked, in s: a change of the file is seen after
/// that at the latest.
const TTL_S: u32 = 5;

impl Directory {
    /// The answer for one of the domain's own names, or for the address of one; `None`: it is
    /// somebody else's.
    pub(crate) fn own_name(&self, tenant: TenantId, question: &Question) -> Option<Answer> {
        let domain = self.tenants.get(&tenant)?.domain.as_str();
        let names = self.admitted.names.get(domain)?;
        if let Some((_, address)) = names.iter().find(|(name, _)| name::same(name, &question.name)) {
            let data = (question.record_type == RecordType::A).then_some(RData::A(A(*address)));
            return Some(answer(question, data));
        }
        let (name, _) =
            names.iter().find(|(_, at)| name::same(&query::reverse((*at).into()), &question.name))?;
        let data = (question.record_type == RecordType::PTR).then(|| RData::PTR(PTR(name.clone())));
        Some(answer(question, data))
    }
}

fn answer(question: &Question, data: Option<RData>) -> Answer {
    Answer::of_own(data.map(|data| Record::from_rdata(question.name.clone(), TTL_S, data)))
}
