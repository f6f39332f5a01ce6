"""The findings: the failure before, the promise that holds now, and the tests that fail without it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A promise that broke: what failed before, what holds now, and its tests as pytest's node ids below `tests/`."""

    before: str
    now: str
    tests: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The node ids from the root of the repository."""
        return tuple(f"tests/{test}" for test in self.tests)


def _of(folder: str, *tests: str) -> tuple[str, ...]:
    return tuple(f"{folder}::{test}" for test in tests)


FINDINGS = {
    1: Finding(
        "an activation whose caller had left overwrote a later one that was acknowledged",
        "a move whose caller has left is finished before the next begins",
        _of(
            "index/catalogue/test_cancelled_moves.py",
            "test_an_activation_is_not_overwritten_by_one_whose_caller_left",
            "test_whenever_an_activation_is_cancelled_memory_and_disk_agree",
            "test_a_deletion_whose_caller_left_is_whole",
            "test_explanations_are_not_overwritten_by_those_whose_caller_left",
            "test_a_generation_whose_caller_left_at_its_commit_is_known_without_a_restart",
        ),
    ),
    2: Finding(
        "building a damaged generation again returned the damaged directory",
        "what stands under a content's id is verified in full and replaced if it is damaged",
        (
            *_of(
                "store/test_artifacts.py",
                "test_the_same_content_committed_again_takes_the_place_of_a_damaged_artifact",
                "test_writers_who_mend_the_same_artifact_at_a_time_leave_one_sound_one",
            ),
            *_of(
                "index/catalogue/test_activation.py",
                "test_verify_names_the_damaged_file_and_changes_nothing",
                "test_a_damaged_generation_is_whole_again_after_it_was_built_again",
            ),
        ),
    ),
    3: Finding(
        "a request id used again returned another request's answer, or was not read at all",
        "a retry gets the first answer, and other content is refused by name",
        (
            *_of(
                "index/catalogue/test_requests.py",
                "test_an_activation_sent_again_gets_the_same_answer_and_moves_nothing",
                "test_the_retry_of_a_call_that_was_killed_behind_its_record_gets_its_answer",
                "test_a_deletion_sent_again_gets_the_same_answer_and_deletes_nothing_else",
                "test_a_finished_build_is_not_returned_for_another_one",
                "test_records_of_finished_builds_are_removed_by_age",
            ),
            *_of(
                "sampler/records/test_records.py",
                "test_a_request_id_of_an_import_is_not_taken_for_other_pairs",
                "test_a_run_is_resumed_once_for_a_request_id",
            ),
            *_of(
                "trainer/registry/test_publishing.py",
                "test_a_rollback_whose_trainer_dies_before_the_label_moves_is_carried_out_by_its_retry",
                "test_a_repeated_request_gets_its_answer_also_after_a_restart_and_other_content_is_refused",
            ),
            *_of(
                "trainer/jobs/test_job_runner.py",
                "test_a_repeated_request_cancels_or_resumes_a_job_once_and_gets_the_first_answer",
                "test_an_idempotency_key_with_another_configuration_is_refused_and_what_differs_named",
            ),
            *_of(
                "aeenc/test_request_ids.py",
                "test_every_rpc_that_takes_a_request_id_is_called_here",
                "test_a_call_that_changes_something_is_repeated_under_the_same_id",
            ),
        ),
    ),
    4: Finding(
        "a Milvus index answered from a generation of another space when its own was deleted meanwhile",
        "files decide which generation serves, whatever proposes; nothing is asked for callers who have left",
        _of(
            "index/milvus/test_milvus_collections.py",
            "test_a_collection_goes_once_nobody_reads_its_generation",
            "test_nothing_is_asked_of_milvus_for_a_caller_who_has_left",
        )
        + _of(
            "index/catalogue/test_replicas.py",
            "test_what_one_replica_deletes_no_other_answers_from_and_its_files_go_when_nobody_reads_them",
        ),
    ),
    5: Finding(
        "answers of IVF and HNSW depended on the other texts of the call",
        "a text is searched as widely alone as beside others",
        _of("index/building/test_engines.py", "test_a_text_is_searched_as_widely_alone_as_beside_others")
        + _of("index/milvus/test_milvus_answers.py", "test_a_text_is_searched_as_widely_alone_as_beside_others"),
    ),
    6: Finding(
        "one unreadable corpus, one slow opening or one exact search held up or ended all others",
        "no corpus, generation or batch holds up the others; pins are bounded by bytes",
        _of(
            "index/catalogue/test_availability.py",
            "test_a_corpus_that_cannot_be_read_does_not_stop_the_others",
            "test_opening_one_generation_holds_up_no_other",
            "test_pinned_generations_are_bounded_by_their_size_too",
            "test_a_batch_that_cannot_be_counted_is_answered_and_the_next_too",
            "test_exact_searches_of_a_large_corpus_let_others_have_their_turn",
            "test_preparing_the_prior_of_one_corpus_holds_up_no_other",
        ),
    ),
    7: Finding(
        "a flat generation beyond about 5.6 M x 384 could not open: its codes were one ONNX constant",
        "codes are cut into blocks, each a constant of its own",
        _of(
            "index/dense/test_int8.py",
            "test_no_constant_holds_more_codes_than_one_model_can",
        ),
    ),
    8: Finding(
        "a rollback to a loaded version waited behind a candidate that hung",
        "what is loaded applies at once; a load can be cancelled and has a time limit",
        _of(
            "encoder/rollout/test_hanging_loads.py",
            "test_a_rollback_to_a_loaded_version_waits_for_no_load",
            "test_moving_a_label_away_ends_the_load_of_what_it_named",
            "test_a_load_that_hangs_is_given_up_with_a_reason_and_the_next_one_goes_on",
        ),
    ),
    9: Finding(
        "an encoder with a broken driver served on the CPU and said CUDA; int8 by name was replaced silently",
        "what is asked for by name is given or refused; what auto chose is said",
        _of(
            "encoder/runtime/test_device.py",
            "test_auto_falls_back_from_a_cuda_that_does_not_work_and_says_so_everywhere",
            "test_cuda_asked_for_by_name_is_refused_where_sessions_are_on_the_cpu",
            "test_a_candidate_whose_session_is_not_where_it_was_asked_for_is_refused",
        )
        + _of(
            "encoder/runtime/test_precision.py",
            "test_a_candidate_without_the_precision_asked_for_by_name_is_refused_and_says_why",
            "test_a_preferred_int8_that_is_not_right_here_falls_back_to_float32_and_says_why",
        ),
    ),
    10: Finding(
        "a model that failed every run stayed SERVING; stuck threads were replaced without end",
        "a failing probe ends readiness until it passes; threads are replaced a bounded number of times",
        _of(
            "encoder/test_failing_model.py",
            "test_a_model_that_always_fails_ends_readiness_until_its_probe_passes",
            "test_texts_that_a_model_cannot_bear_do_not_end_readiness",
        )
        + _of(
            "encoder/batching/test_batcher.py",
            "test_threads_that_never_come_back_are_replaced_a_bounded_number_of_times",
        ),
    ),
    11: Finding(
        "a load over three seconds was done twice, and loaded bytes had no cap",
        "a load is done once; a candidate that would not fit is refused",
        _of(
            "encoder/rollout/test_candidates.py",
            "test_a_load_that_takes_too_long_when_idle_goes_on_with_a_share_and_does_nothing_twice",
        )
        + _of(
            "encoder/rollout/test_hanging_loads.py",
            "test_a_candidate_that_would_not_fit_beside_the_serving_versions_is_refused",
            "test_memory_of_a_version_that_is_gone_is_free_for_the_next",
        ),
    ),
    12: Finding(
        "one row of a newer release ended every encoder at its start",
        "the next minor version is read and kept, the next major refused by name while the process serves on",
        (
            *_of(
                "store/test_formats.py",
                "test_a_record_of_a_newer_format_is_refused_by_name_and_stays",
                "test_a_field_that_is_not_known_is_read_over_and_kept",
                "test_a_record_without_a_number_is_damaged",
            ),
            *_of(
                "encoder/rollout/test_newer_releases.py",
                "test_an_encoder_that_meets_a_label_of_the_next_major_release_serves_on_and_names_it",
            ),
            *_of(
                "launcher/test_fleet_refusals.py",
                "test_a_fleet_of_the_next_minor_release_is_read_and_its_record_keeps_what_that_has_added",
                "test_a_record_that_this_release_does_not_read_stops_up_and_down_by_name",
            ),
            *_of(
                "sampler/records/test_records.py",
                "test_a_task_of_a_newer_release_is_refused_by_name_and_disturbs_no_other_run",
            ),
            *_of(
                "index/catalogue/test_requests.py",
                "test_a_build_that_a_newer_release_has_noted_is_refused_by_name_and_stays",
            ),
            *_of(
                "trainer/jobs/test_job_runner.py",
                "test_a_job_whose_inputs_a_newer_release_has_written_waits_and_names_them",
            ),
            *_of(
                "trainer/learning/test_job.py",
                "test_a_state_of_the_next_major_release_is_never_taken_for_damaged_though_its_hash_is_made_another_way",
            ),
            *_of(
                "index/building/test_resume.py",
                "test_a_build_without_an_encoder_that_serves_ends_with_its_reason_well_before_the_callers_time",
            ),
        ),
    ),
    13: Finding(
        "an encoder whose clock was behind counted as dead; answers and instances were never trimmed",
        "the clock of Redis alone decides; who has gone leaves nothing",
        _of(
            "store/test_rollouts.py",
            "test_an_encoder_whose_clock_is_a_minute_behind_is_alive",
            "test_encoders_that_have_come_and_gone_leave_nothing_in_redis",
            "test_waiting_for_a_rollout_reads_only_when_something_has_happened",
        ),
    ),
    14: Finding(
        "admission kept its estimate: Chinese counted a quarter of its tokens, one call could exceed its lane",
        "a call holds the tokens that it really has; a larger one is computed in parts",
        _of(
            "encoder/test_token_counts.py",
            "test_a_call_holds_the_tokens_that_it_really_has",
            "test_a_call_that_proves_too_large_for_the_room_left_is_refused_with_a_delay",
            "test_a_call_larger_than_a_lane_is_computed_in_parts_that_fit",
        ),
    ),
    15: Finding(
        "TLS_CLIENT_CA alone opened a plaintext port; messages were parsed before credentials",
        "what TLS cannot keep is refused, changed certificates are read, credentials come first",
        _of(
            "kit/test_tls.py",
            "test_client_certificates_without_tls_are_refused",
            "test_certificates_are_read_again_when_they_have_changed",
        )
        + _of("kit/test_server.py", "test_a_message_of_a_caller_without_a_valid_token_is_not_parsed")
        + _of("encoder/rollout/test_hanging_loads.py", "test_a_file_over_the_limit_is_refused_before_it_is_hashed"),
    ),
    16: Finding(
        "a generated request id reached nobody, although INTERNAL tells callers to look it up",
        "every answer returns it, and the SDK's errors name it",
        _of("kit/test_server.py", "test_a_call_has_one_id_in_servicer_log_and_answer")
        + _of("aeenc/transport/test_channel.py", "test_an_error_names_the_request_id_that_the_service_returns"),
    ),
    17: Finding(
        "an iterator or callback that called the blocking client waited for itself for ever",
        "callers' code runs in the callers' thread; calls on the loop's own raise at once",
        _of(
            "aeenc/transport/test_sync.py",
            "test_what_goes_into_a_call_may_come_from_calls",
            "test_a_callback_may_call_and_has_been_called_in_order_when_the_call_returns",
            "test_a_blocking_call_on_the_loops_own_thread_raises_at_once",
        )
        + _of("aeenc/transport/test_forks.py", "test_use_after_a_fork_raises_and_says_what_to_do"),
    ),
    18: Finding(
        "a typo in a judge made every candidate a hard negative",
        "an answer that is not about the candidates is named and refuses nothing",
        _of(
            "aeenc/test_oracle.py",
            "test_an_answer_that_is_not_about_the_candidates_is_named_and_refuses_nothing",
            "test_a_typo_in_a_judge_leaves_no_negative_in_the_pairs_of_a_run",
        ),
    ),
    19: Finding(
        "an adjudicator could not take a decision back; undo took back somebody else's; a death left old pairs",
        "second thoughts stand and reach the pair log",
        _of(
            "sampler/people/test_amendments.py",
            "test_an_adjudicator_takes_a_decision_back_before_and_after_it_became_pairs",
            "test_what_somebody_else_has_amended_is_not_undone_by_its_author",
            "test_the_pairs_of_an_amendment_whose_sampler_died_are_added_by_the_next",
        ),
    ),
    20: Finding(
        "a people's run cancelled through one sampler held another's worker for ever",
        "the worker comes back",
        _of(
            "sampler/people/test_queue.py",
            "test_a_run_cancelled_through_another_sampler_gives_its_worker_back",
        ),
    ),
    21: Finding(
        "an oracle at two addresses failed its run with AttributeError",
        "it answers, and says whether one is connected",
        _of("aeenc/test_oracle.py", "test_an_oracle_at_two_addresses_answers_and_says_whether_one_is_connected"),
    ),
    22: Finding(
        "no run, job or checkpoint could be deleted; nothing was ever collected",
        "they are deleted by call, by age and by count, sparing what labels and generations name",
        _of(
            "store/test_life_cycles.py",
            "test_deleted_work_is_seen_by_nobody_and_its_idempotency_key_starts_another",
            "test_what_has_ended_is_old_by_age_or_by_number_and_live_work_never",
            "test_of_a_long_life_the_last_events_are_kept_and_a_late_watcher_begins_at_the_first_of_them",
        )
        + _of(
            "sampler/records/test_deletion.py",
            "test_nothing_is_left_of_a_deleted_run_and_its_idempotency_key_starts_a_new_one",
            "test_a_live_run_is_not_deleted_and_a_cancelled_one_is_with_all_that_people_did",
            "test_a_sampler_that_was_paused_while_its_run_was_deleted_leaves_nothing_behind",
            "test_what_was_claimed_for_an_import_that_never_came_expires_and_an_import_is_known_for_good",
            "test_an_import_that_was_deleted_can_be_made_again_under_its_request_id",
            "test_a_deletion_that_a_kill_interrupts_is_seen_whole_and_carried_on_at_the_next_start",
            "test_what_the_settings_no_longer_keep_goes_at_the_next_look_and_a_dry_run_says_it_before",
        )
        + _of(
            "trainer/garbage/test_deletion.py",
            "test_a_deleted_job_is_gone_with_its_files_and_its_idempotency_key",
            "test_a_checkpoint_that_anybody_needs_is_not_deleted_and_the_refusal_names_who",
            "test_of_a_label_and_a_deletion_at_the_same_time_one_is_refused",
            "test_files_of_a_deleted_checkpoint_go_after_the_grace_period_also_after_a_restart",
            "test_a_collection_removes_what_the_settings_no_longer_keep_and_a_dry_run_only_lists_it",
        ),
    ),
    23: Finding(
        "the terminal lost its ticks when the sampler restarted; tasks waited for judges who had left",
        "the terminal waits and keeps them; a lowered overlap decides, and a task can be closed",
        _of("cli/test_terminal.py", "test_a_session_waits_for_a_sampler_that_is_away_and_keeps_its_ticks")
        + _of(
            "sampler/people/test_queue.py",
            "test_tasks_of_a_judge_who_left_are_decided_once_the_overlap_is_lowered",
            "test_control_items_measure_annotators_and_become_no_pairs",
        )
        + _of(
            "sampler/people/test_closing.py",
            "test_the_answers_that_there_are_decide_and_what_they_have_not_seen_is_no_negative",
        ),
    ),
    24: Finding(
        "positives only after the restart could not be had from `aeenc loop`; texts could be nodes twice",
        "later rounds may sample otherwise; a text is a node once; a node sees K candidates whatever is dropped",
        _of("aeenc/test_loop.py", "test_later_rounds_may_sample_otherwise_than_the_first")
        + _of("cli/learning/test_loop.py", "test_positives_alone_may_be_collected_after_the_first_round")
        + _of(
            "sampler/acs/test_tree.py",
            "test_a_text_is_a_node_once_below_the_first_parent_that_accepts_it",
        )
        + _of(
            "sampler/acs/test_algorithm.py",
            "test_a_node_sees_k_candidates_however_many_ancestors_are_among_the_nearest",
        )
        + _of(
            "sampler/acs/test_negatives.py",
            "test_a_querys_negatives_do_not_depend_on_the_order_of_the_trees_in_which_it_occurs",
        ),
    ),
    25: Finding(
        "a trainer deleted the `stable` of a space that another was about to activate",
        "tandems move one at a time among all trainers; only one's own move is undone",
        _of(
            "trainer/registry/test_tandems.py",
            "test_a_space_that_another_trainer_is_about_to_activate_is_not_closed",
            "test_a_label_that_somebody_moves_during_a_publication_that_fails_stays_where_they_want_it",
        ),
    ),
    26: Finding(
        "the gate passed silently without figures, and on few queries",
        "the answer says what was compared, or why nothing; a job also measures what serves",
        _of(
            "trainer/registry/test_quality_gate.py",
            "test_an_answer_says_what_a_version_was_compared_with_or_why_with_nothing",
            "test_what_serves_is_compared_by_what_the_candidates_job_measured",
            "test_with_few_queries_the_answer_says_that_they_are_too_few",
        ),
    ),
    27: Finding(
        "a kill could leave the best epoch with other weights; one damaged file failed every resume",
        "the best epoch survives; damage is computed again or refused with a remedy",
        _of(
            "trainer/jobs/test_job_goes_on.py",
            "test_a_job_whose_process_is_asked_to_end_again_and_again_fails_with_a_remedy",
            "test_a_progress_that_a_power_cut_has_emptied_does_not_end_a_job",
            "test_a_result_whose_checkpoint_is_damaged_is_computed_again",
            "test_inputs_that_are_damaged_before_anything_is_learned_are_written_anew",
            "test_a_job_that_has_learned_from_an_input_damaged_since_fails_with_its_name",
            "test_a_tandem_whose_generation_is_deleted_meanwhile_fails_with_its_name_and_the_remedy",
            "test_two_owners_of_a_directory_report_their_progress_beside_each_other",
        )
        + _of(
            "trainer/learning/test_job.py",
            "test_a_job_killed_after_writing_the_weights_of_an_epoch_that_is_not_the_best_in_the_end_keeps_the_best",
            "test_a_job_names_what_it_began_with_and_has_been_deleted_since",
        ),
    ),
    28: Finding(
        "a step over a million premises allocated gigabytes and died",
        "a step holds scores over a block of premises, never over all",
        _of(
            "trainer/learning/loss/test_corpus_negatives.py",
            "test_a_step_never_holds_scores_over_more_than_a_block_of_premises",
        ),
    ),
    29: Finding(
        "pairs of the job's own split over a corpus without splits were not held out",
        "premises of other splits are never learned from",
        _of(
            "trainer/data/test_training_set.py",
            "test_a_premise_of_other_splits_is_not_learned_from_in_a_run_over_a_corpus_without_splits",
        ),
    ),
    30: Finding(
        "a wrong split printed an empty table, a wrong label exited with 4, builds said nothing, torch for GetInfo",
        "wrong use is named and exits with 2; a build says its stage; no child without a GPU driver",
        _of("index/building/test_engines.py", "test_a_build_says_that_it_is_indexing")
        + _of(
            "trainer/processes/test_device.py",
            "test_without_a_gpu_driver_the_device_is_known_at_once_and_no_process_is_started",
        )
        + _of("cli/test_exit_codes.py", "test_wrong_use_is_exit_code_2")
        + _of("cli/test_corpus.py", "test_a_corpus_of_trees_keeps_splits_and_waits_for_activation_when_told"),
    ),
}
