"""The scheduler: arrays in, decisions out, and a reason for every wait.

Nothing here touches a clock, the network, a disk, a database or a thread. `scheduler` takes events and keeps the state
from one to the next; `cycle` is one round over it: every step is tried in a `session` and taken back by `undo`. By
what one looks for:

- **State.** `cluster` (nodes and GPUs), `holders` (who runs), `queue` (who waits, by `shape`), `members` (gangs),
  `ledger` (what projects and users hold), `usage` (and held lately), `bookings`, `modes`, `links`, `topology`.
- **Who is next.** `fairshare` (what everybody is due), `order` and `lanes` (inside a project), `allocate` (the round).
- **Where.** `usable` (which nodes would do) and `placement` (the best of them) by `scoring`: `fragmentation` and
  `residue` against the `typical` work; `gang` for several at once; `capacity`, how many would fit.
- **Waiting for space.** `reserve` keeps it for who starves, `backfill` lets others use it meanwhile, by `runtimes` and
  `pastruns`.
- **Making room.** `reclaim` and `preempt` ask `rights` (`fairshare`, and `guarantees` of GPU models) who may take from
  whom, and `room_maker` evicts whom `clearing` (`clearing_gangs`) finds among the `victims`; reservations are
  `giving_way`; `turns`, `booked` and `consolidate` evict on other grounds; `evict` says it to the owner.
- **Answers.** `explain` by `wait_rules` (about a `wait_case`) and `remedies`; `estimate`, `turnover`,
  `calibration`: when; `plan`, `suppose`: what if; `feasible`: whether ever; `standing`: who is where and why; `words`.
- `values` are what goes in and comes out, `policy` what an administrator decides.
"""
