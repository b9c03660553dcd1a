//! The cases, and the table that names them once.

mod cancel;
mod drops;
mod election;
mod handoff;
mod ids;
mod latch;
mod limits;
mod line;
mod look;
mod loss;
mod many;
mod mutual;
mod names;
mod owners;
mod processes;
mod promise;
mod rwlock;
mod semaphore;
mod standing;
mod time;
mod tokens;
mod unknown;

use super::case::Case;
use super::grip::Way;
use super::need::Need;

/// Makes the table of all cases, and the macro that makes a test of each.
macro_rules! table {
    ($d:tt
     rules { $( $module:ident { $( $rule:ident $( $need:ident )* ; )* } )* }
     alone { $( $alone_module:ident { $( $alone:ident $( $alone_need:ident )* ; )* } )* }
     mutual { $( $mutual:ident $( $mutual_need:ident )* ; )* }
    ) => {
        /// Every case.
        pub fn cases() -> &'static [Case] {
            const CASES: &[Case] = &[
                $($( Case {
                    name: stringify!($rule),
                    needs: &[$( Need::$need ),*],
                    alone: false,
                    run: |t| Box::pin($module::$rule(t)),
                }, )*)*
                $($( Case {
                    name: stringify!($alone),
                    needs: &[$( Need::$alone_need ),*],
                    alone: true,
                    run: |t| Box::pin($alone_module::$alone(t)),
                }, )*)*
                $( Case {
                    name: concat!("mutex::", stringify!($mutual)),
                    needs: &[$( Need::$mutual_need ),*],
                    alone: false,
                    run: |t| Box::pin(mutual::$mutual(t, Way::Mutex)),
                }, )*
                $( Case {
                    name: concat!("rwlock_as_mutex::", stringify!($mutual)),
                    needs: &[$( Need::$mutual_need ),*],
                    alone: false,
                    run: |t| Box::pin(mutual::$mutual(t, Way::Writer)),
                }, )*
                $( Case {
                    name: concat!("semaphore_1_as_mutex::", stringify!($mutual)),
                    needs: &[Need::Permits, $( Need::$mutual_need ),*],
                    alone: false,
                    run: |t| Box::pin(mutual::$mutual(t, Way::OnlyPermit)),
                }, )*
                $( Case {
                    name: concat!("semaphore_5_with_4_taken_as_mutex::", stringify!($mutual)),
                    needs: &[Need::Permits, $( Need::$mutual_need ),*],
                    alone: false,
                    run: |t| Box::pin(mutual::$mutual(t, Way::LastPermit)),
                }, )*
            ];
            CASES
        }

        /// Makes a module with a `#[test]` of every case of the
        /// [conformance suite](mod@crate::conformance), on the subject that the expression gives:
        /// one line a row of the matrix. The expression is evaluated once a test, where the row
        /// stands.
        ///
        /// The module of a row stands inside of another, `conformance_suite`, so that it hides no
        /// crate of its name from the expression. So the rows of one module stand in one call.
        ///
        /// ```no_run
        /// # mod rows {
        /// use lockkeeper_lab::conformance::Subject;
        ///
        /// lockkeeper_lab::conformance! {
        ///     here => Subject::memory(),
        ///     slowly => Subject::memory().effort(20),
        /// }
        /// # }
        /// ```
        #[macro_export]
        macro_rules! conformance {
            ($d row:ident, $d subject:expr $d (,)?) => {
                $d crate::conformance! { $d row => $d subject }
            };
            ($d ( $d row:ident => $d subject:expr ),+ $d (,)?) => {
                mod conformance_suite {
                    $d ( mod $d row {
                        /// Nothing but what the subject may need can be named here.
                        mod opened {
                            #[allow(
                                unused_imports,
                                reason = "the subject may need what is imported around its row"
                            )]
                            use super::super::super::*;
                            pub fn row_of_the_suite() -> $d crate::conformance::Subject {
                                $d subject
                            }
                        }
                        use opened::row_of_the_suite;

                        $($(
                            #[test]
                            fn $rule() {
                                let name = stringify!($rule);
                                $d crate::conformance::check(name, row_of_the_suite);
                            }
                        )*)*
                        $($(
                            #[test]
                            fn $alone() {
                                let name = stringify!($alone);
                                $d crate::conformance::check(name, row_of_the_suite);
                            }
                        )*)*

                        mod mutex {
                            use super::row_of_the_suite;
                            $(
                                #[test]
                                fn $mutual() {
                                    let name = concat!("mutex::", stringify!($mutual));
                                    $d crate::conformance::check(name, row_of_the_suite);
                                }
                            )*
                        }
                        mod rwlock_as_mutex {
                            use super::row_of_the_suite;
                            $(
                                #[test]
                                fn $mutual() {
                                    let name = concat!("rwlock_as_mutex::", stringify!($mutual));
                                    $d crate::conformance::check(name, row_of_the_suite);
                                }
                            )*
                        }
                        mod semaphore_1_as_mutex {
                            use super::row_of_the_suite;
                            $(
                                #[test]
                                fn $mutual() {
                                    let name = concat!(
                                        "semaphore_1_as_mutex::",
                                        stringify!($mutual)
                                    );
                                    $d crate::conformance::check(name, row_of_the_suite);
                                }
                            )*
                        }
                        mod semaphore_5_with_4_taken_as_mutex {
                            use super::row_of_the_suite;
                            $(
                                #[test]
                                fn $mutual() {
                                    let name = concat!(
                                        "semaphore_5_with_4_taken_as_mutex::",
                                        stringify!($mutual)
                                    );
                                    $d crate::conformance::check(name, row_of_the_suite);
                                }
                            )*
                        }
                    } )+
                }
            };
        }
    };
}

table! { $
    rules {
        loss {
            r2_a_lock_taken_away_is_announced_and_stays_lost Force;
            r2_entering_a_lost_hold_again_fails Force;
            r2_verify_asks_the_engine_now Force;
            r2_work_is_dropped_when_its_lock_is_lost Force;
            r2_a_store_wiped_under_a_holder_is_noticed Wipe;
            r2_g19_loss_is_announced_at_the_deadline_while_every_call_hangs Leases Cut;
        }
        ids {
            r3_an_attempt_sent_twice_holds_once;
            r3_a_place_taken_twice_is_one_place Fair;
            r3_a_release_sent_twice_frees_only_its_own_grant;
            r3_a_withdrawal_gives_a_grant_back_and_touches_no_other;
            r3_a_try_that_finds_it_busy_leaves_nothing;
            r3_a_release_and_the_next_claim_go_in_one_message Fair;
            r3_renewing_what_is_gone_says_so Leases;
            r3_a_latch_counted_down_twice_with_one_id_counts_once Latch;
        }
        standing {
            r7_a_rechecked_hold_says_the_number_of_its_grant;
            r7_a_hold_that_was_waited_for_says_its_number_too;
            r7_an_upgraded_hold_says_the_number_of_its_upgrade Upgrade;
            r10_a_rechecked_place_is_in_line_and_a_left_one_is_gone;
            rechecked_permits_are_held_by_the_same_grant Permits;
        }
        unknown {
            r4_a_release_out_of_reach_is_done_once_it_can_be Cut;
            r4_an_acquisition_out_of_reach_holds_once Cut;
        }
        cancel {
            r5_an_upgrade_dropped_at_any_poll_leaves_the_guard_as_it_was Upgrade;
            r5_an_upgrade_dropped_while_it_is_granted_is_taken_back Upgrade;
            r5_a_downgrade_dropped_at_any_poll_gives_the_lock_back Upgrade;
            r5_several_locks_dropped_at_any_poll_leave_nothing;
            r5_waiting_for_a_latch_dropped_at_any_poll_leaves_no_watch Latch;
            r5_watching_dropped_at_any_poll_leaves_no_watch List;
            r5_cancels_at_random_instants_lose_nothing;
            r5_a_released_guard_leaves_nothing;
        }
        drops {
            r6_a_guard_dropped_without_a_runtime_is_given_back;
            r6_a_panicking_holder_gives_the_lock_back;
            r6_a_panicking_observer_stops_nothing;
            r6_close_makes_guards_lost_and_refuses_new_claims;
            r6_close_refuses_those_who_wait;
        }
        tokens {
            r7_tokens_rise_over_tasks_and_clients Tokens;
            r7_tokens_rise_over_reopening Tokens;
            r7_tokens_rise_over_processes Tokens Processes;
            r7_tokens_rise_over_a_wiped_store Tokens Wipe;
            r7_tokens_rise_over_a_restarted_server Tokens Restart;
            r7_an_upgrade_and_a_downgrade_give_new_tokens Tokens Upgrade;
            r7_shared_tokens_lie_between_exclusive_ones Tokens Shared;
            r7_permits_carry_no_token Permits;
        }
        owners {
            r8_the_same_owner_enters_again_and_the_last_guard_releases;
            r8_a_scope_lends_its_owner;
            r8_a_strict_owner_is_told_where_it_locked_first;
            r8_an_owner_that_reads_would_wait_for_itself_to_write Shared;
            r8_an_owner_with_an_upgradable_guard_upgrades Upgrade;
            r8_no_conversion_takes_from_another_guard_of_its_owner_what_that_was_given Upgrade;
            r8_who_enters_under_a_writing_keeps_what_it_was_given_when_that_ends Upgrade;
            r8_another_owner_waits;
            r8_without_an_owner_nothing_is_guessed;
            r8_the_same_thread_would_deadlock_at_once;
        }
        handoff {
            r9_a_process_has_one_place_in_the_line Fair HandOff;
            r9_a_hold_has_at_most_64_turns HandOff;
            r9_a_hold_passes_for_at_most_its_time HandOff;
            r9_a_handed_off_turn_has_a_greater_token HandOff Tokens;
            r9_without_hand_off_every_turn_is_a_hold_of_its_own HandOff;
            r9_turns_pass_while_the_lease_of_their_hold_is_renewed HandOff Leases;
            r9_fixed_leases_never_pass HandOff;
            r9_permits_never_pass Permits;
            r9_readers_join_a_hold_of_their_process Shared HandOff;
            r9_a_hold_whose_statement_was_given_out_never_passes Statements;
        }
        line {
            r10_waiters_are_woken Fair;
            r11_first_come_first_served Fair;
            r11_first_come_first_served_between_processes Fair Processes;
            r11_a_try_never_overtakes_a_line Fair Shared;
            r11_a_reader_waits_behind_a_waiting_writer Fair Shared;
            r11_readers_do_not_starve_a_writer Shared WriterTurns;
            r11_whoever_leaves_the_line_lets_the_next_pass Fair;
        }
        names {
            r12_different_names_are_different_locks;
            r12_every_kind_has_names_of_its_own;
            r12_a_mutex_is_the_writer_of_the_rwlock_of_its_name;
        }
        limits {
            r13_names_beyond_their_limits_are_refused;
            r13_times_beyond_their_limits_are_refused;
            r13_permits_beyond_their_limits_are_refused Permits;
            r13_the_greatest_of_everything_works;
        }
        promise {
            r14_it_says_what_it_promises;
            r14_a_stopped_holder_is_passed_when_it_says_so Processes;
            r14_a_holder_that_leaves_without_closing_frees_the_lock_in_time Processes;
        }
        processes {
            r15_g16_a_forked_child_has_no_locks Processes;
            r15_the_end_of_the_runtime_ends_no_lock;
            two_processes_of_many_tasks_exclude_each_other_and_tokens_rise Processes;
            two_processes_of_readers_and_writers_exclude_each_other Processes Shared;
        }
        time {
            r16_g11_a_turn_that_is_held_too_long_ends;
            r16_a_fixed_lease_ends_at_its_time Leases;
            r16_a_fixed_lease_that_was_waited_for_lasts_its_whole_time Leases;
            r16_a_lease_that_ran_out_is_followed_by_its_delay Leases Delay;
            r1_a_lease_is_renewed_for_as_long_as_the_guard_lives Leases;
            a_timeout_ends_in_time;
        }
        rwlock {
            readers_share_and_a_writer_is_alone Shared;
            an_upgrade_waits_for_the_other_readers Upgrade;
            only_one_is_upgradable_at_a_time Upgrade;
            a_downgraded_writer_lets_readers_in_and_no_writer Upgrade;
            an_upgrade_that_times_out_leaves_the_guard_as_it_was Upgrade;
        }
        semaphore {
            permits_are_weighted Permits;
            the_limit_is_stored_and_another_is_refused Permits Resize;
            a_greater_limit_lets_waiters_in Permits Resize;
            a_smaller_limit_takes_nothing_away Permits Resize;
            permits_die_with_their_process Permits Processes;
            a_great_claim_is_not_starved_by_small_ones Permits FairPermits;
        }
        latch {
            a_latch_is_open_closed_and_open_again Latch;
            everybody_waits_for_a_latch Latch;
            a_closed_latch_is_not_set_again Latch;
        }
        election {
            one_leads_and_everybody_sees_who Election;
            who_lost_its_term_stands_again Election Force;
            the_terms_have_rising_tokens Election Tokens;
        }
        many {
            all_are_taken_or_none;
            opposite_orders_never_deadlock;
            all_release_all;
        }
        look {
            the_status_shows_who_holds_and_who_waits Status;
            the_list_shows_what_is_in_use List;
            a_watch_shows_each_change List;
            a_lock_is_taken_away_from_its_holder Force;
        }
    }
    alone {
        drops {
            r6_nothing_is_left_of_a_closed_client;
            r6_nothing_is_left_of_a_client_that_was_only_dropped;
        }
        cancel {
            r5_nothing_is_left_of_many_waiters;
            r5_opening_dropped_at_any_poll_leaves_nothing;
        }
    }
    mutual {
        one_holds_it_and_the_next_waits;
        a_dropped_guard_frees_it;
        a_timeout_names_the_holder_and_leaves_nothing;
        a_try_does_not_wait_and_leaves_nothing;
        g17_every_task_gets_its_turns_and_never_two_at_once;
        r5_g18_an_acquisition_dropped_at_any_poll_leaves_nothing;
        r5_an_offer_that_nobody_polls_moves_on_after_a_second;
        closing_the_client_frees_it;
        two_processes_exclude_each_other Processes;
        r14_a_killed_holder_frees_it_within_the_promised_time Processes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = cases().iter().map(|case| case.name).collect();
        assert_eq!(names.len(), cases().len());
    }
}
