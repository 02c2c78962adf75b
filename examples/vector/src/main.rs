//! Arithmetic on arrays as a service: a domain puts arrays into memory that it shares with this
//! program, and has them added, multiplied and summed here. The arrays go through no file and no
//! socket. `README.md` shows it.

mod arrays;

use arrays::{Kind, Order};
use service::{Call, Errno, Error, Service, SessionId, ready};
use std::collections::HashMap;
use std::fs::File;

/// The answer of each open file that has one.
type Answers = HashMap<SessionId, Vec<u8>>;

fn main() -> Result<(), Error> {
    let mut vector = Service::new("vector", Answers::new())?;
    let array = vector.device("array", "compute");
    array.opened(|_, call| {
        // Without memory there is nothing to compute on: in a guest, on another node.
        call.memory().ok_or(Errno::NODEV)?;
        call.ready(ready::WRITE);
        Ok(())
    });
    array.written(|answers, call, line| {
        let answer = compute(call, line)?;
        answers.insert(call.session(), answer);
        call.ready(ready::READ | ready::WRITE);
        Ok(line.len())
    });
    array.read(|answers, call, size| {
        let mut answer = answers.remove(&call.session()).ok_or(Errno::AGAIN)?;
        answer.truncate(size);
        call.ready(ready::WRITE);
        Ok(answer)
    });
    array.closed(|answers, call| {
        answers.remove(&call.session());
    });
    vector.run()
}

/// Does all orders of a batch, a line each, and answers a line for each: nothing is done after the
/// first that is wrong.
fn compute(call: &Call<'_>, batch: &[u8]) -> Result<Vec<u8>, Errno> {
    let memory = call.memory().ok_or(Errno::NODEV)?.try_clone_to_owned().map_err(|_| Errno::MFILE)?;
    let memory = File::from(memory);
    let text = std::str::from_utf8(batch).map_err(|_| Errno::INVAL)?;
    let (mut answer, mut elements) = (String::new(), 0);
    for line in text.lines() {
        let (order, kind) = Order::of(line).ok_or(Errno::INVAL)?;
        elements += order.count;
        if elements > arrays::MAX_ELEMENTS {
            return Err(Errno::TOOBIG);
        }
        let result = match kind {
            Kind::F32 => arrays::run::<f32>(&order, &memory),
            Kind::F64 => arrays::run::<f64>(&order, &memory),
            Kind::I64 => arrays::run::<i64>(&order, &memory),
        };
        answer.push_str(&result?);
        answer.push('\n');
    }
    Ok(answer.into_bytes())
}
