//! What an engine leaves to the engine of one server where it only knows where that is.

/// The methods of [`Engine`](crate::engine::Engine) that are about locks alone, done by the field
/// `server`.
macro_rules! server_does_the_rest {
    () => {
        fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
            self.server.attempt(claim, line)
        }

        fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
            self.server.recheck(claims)
        }

        fn withdraw(&self, claim: ClaimId) -> Answer<End> {
            self.server.withdraw(claim)
        }

        fn convert(&self, hold: HoldId, claim: &Claim) -> Answer<Attempt> {
            self.server.convert(hold, claim)
        }

        fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
            self.server.renew(leases)
        }

        fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
            self.server.release(holds, again)
        }

        fn read(&self, query: &Query) -> Answer<Result<Vec<Entry>>> {
            self.server.read(query)
        }

        fn write(&self, change: &Change) -> Answer<Result<bool>> {
            self.server.write(change)
        }

        fn watch(&self, watch: WatchId, query: &Query) -> Answer<Result<()>> {
            self.server.watch(watch, query)
        }

        fn unwatch(&self, watch: WatchId) {
            self.server.unwatch(watch);
        }

        fn ask(&self, kind: Kind, name: &Name) -> Answer<Result<bool>> {
            self.server.ask(kind, name)
        }

        fn other_layouts(&self, name: &Name) -> Answer<Result<Vec<Warning>>> {
            self.server.other_layouts(name)
        }

        fn sweep(&self, word: &str) -> Answer<Result<bool>> {
            self.server.sweep(word)
        }

        fn inlet(&self) -> Option<Arc<dyn Inlet>> {
            self.server.inlet()
        }
    };
}

pub(in crate::engine) use server_does_the_rest;
