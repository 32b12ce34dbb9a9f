//! The tests of `skein acp` once more, with `skein serve` over WebSocket, over HTTP and behind `skein acp --connect`. A
//! test that is missing here speaks of stdio itself, or of what only the user of the machine has; its reason is below.

/// Makes one test for each named test of another module, over a transport.
macro_rules! tests_over {
    ($transport:ident => $($module:ident: $($test:ident),* ;)*) => {
        $(mod $module {
            $(#[test]
            fn $test() {
                crate::support::remote::over(crate::support::remote::Transport::$transport, crate::$module::$test);
            })*
        })*
    };
}

/// Makes the tests of a transport with one stream of messages, over each of these.
///
/// Not over the network: the end of stdin, lines that are not UTF-8, the set-up in a terminal, terminals without a
/// sandbox, a damaged store (the server does not start), notices about a new version, sessions and rules of `local`.
/// Files of the editor: the tests here have the root `/`, so files are those of the server; see `serve_files`.
/// What processes of client servers see of this machine: those of remote sessions run in a sandbox; see `serve_files`.
macro_rules! stream_tests_over {
    ($($name:ident: $transport:ident),*) => {
        $(mod $name {
            tests_over!($transport =>
                acp_wire:
                    an_answer_has_the_id_of_its_question,
                    notifications_are_not_answered,
                    unknown_methods_are_refused,
                    the_agent_introduces_itself,
                    a_version_that_is_not_spoken_is_answered_with_ours,
                    before_initialize_everything_is_refused;
                acp_sessions:
                    every_session_has_an_id_of_its_own,
                    a_session_is_spoken_of_after_it_was_answered,
                    a_request_that_is_wrong_makes_no_session,
                    a_server_of_the_client_is_bound_where_the_mode_asks_for_it,
                    a_server_that_cannot_start_is_told_and_the_session_works,
                    a_server_that_is_slow_to_start_holds_up_nobody_else,
                    what_a_mode_does_without_is_told_when_it_is_entered,
                    a_prompt_of_a_server_is_a_command,
                    a_loaded_session_is_told_before_it_is_answered,
                    a_resumed_session_is_not_told_again,
                    an_unknown_session_is_named,
                    sessions_are_listed_page_by_page,
                    a_title_is_what_the_user_wrote,
                    a_deleted_session_is_gone,
                    a_session_is_closed_after_its_turn,
                    additional_directories_can_be_reached,
                    a_fork_goes_its_own_way;
                acp_prompt:
                    a_turn_is_told_before_it_is_answered,
                    what_was_advertised_can_be_prompted,
                    a_model_is_shown_what_was_prompted,
                    a_question_says_what_it_is_about,
                    a_command_cannot_leave_the_fence_around_it,
                    tool_output_is_fenced_and_raw_output_is_plain,
                    a_command_cannot_hide_characters_from_a_question,
                    always_covers_one_command_and_no_is_no,
                    a_question_is_taken_back_when_the_turn_is_cancelled,
                    a_client_that_does_not_answer_does_not_hold_the_turn,
                    a_running_command_is_stopped,
                    a_speaking_model_is_cut_off,
                    a_cancel_right_behind_its_prompt_is_not_lost,
                    a_prompt_can_be_cancelled_by_its_id,
                    a_busy_session_takes_no_second_prompt,
                    sessions_do_not_wait_for_each_other,
                    a_hundred_sessions_interleave,
                    a_failure_of_the_model_is_an_error,
                    calls_have_ids_of_their_own_whatever_the_model_says,
                    the_first_prompt_names_the_session,
                    a_plan_is_told_whole,
                    an_edit_is_shown_as_a_diff,
                    a_fast_stream_keeps_its_order,
                    usage_is_told_with_its_cost,
                    usage_is_told_without_a_known_window,
                    a_search_lists_the_matching_files,
                    a_shortened_talk_is_told_to_who_understands_it,
                    a_client_that_reads_late_gets_the_same_words,
                    only_clients_that_list_options_are_offered_a_lasting_rule,
                    an_edit_question_has_one_diff_of_the_whole_file,
                    options_name_the_action_and_the_file;
                acp_options:
                    what_is_current_can_be_chosen,
                    modes_and_options_are_in_step,
                    the_answer_to_a_choice_is_the_whole_list,
                    approval_is_what_was_chosen,
                    what_is_unknown_cannot_be_chosen,
                    a_prompt_runs_in_the_mode_that_was_set_before_it,
                    a_switch_in_a_turn_holds_from_the_next,
                    a_mode_that_cannot_be_entered_is_refused;
            );
        })*
    };
}

// `skein acp --connect` is on stdio again, so what holds for a WebSocket holds for it.
stream_tests_over!(websocket: WebSocket, connect: Connect);

// Over HTTP, the connection and each session have a stream of their own, so their order is not defined. A connection
// begins with `initialize`, and ends if that fails.
mod http {
    tests_over!(Http =>
        acp_wire:
            an_answer_has_the_id_of_its_question,
            notifications_are_not_answered,
            unknown_methods_are_refused,
            the_agent_introduces_itself;
        acp_sessions:
            every_session_has_an_id_of_its_own,
            a_request_that_is_wrong_makes_no_session,
            a_server_of_the_client_is_bound_where_the_mode_asks_for_it,
            a_server_that_cannot_start_is_told_and_the_session_works,
            what_a_mode_does_without_is_told_when_it_is_entered,
            a_prompt_of_a_server_is_a_command,
            a_loaded_session_is_told_before_it_is_answered,
            a_resumed_session_is_not_told_again,
            an_unknown_session_is_named,
            a_deleted_session_is_gone,
            a_session_is_closed_after_its_turn,
            additional_directories_can_be_reached,
            sessions_are_listed_page_by_page,
            a_title_is_what_the_user_wrote,
            a_fork_goes_its_own_way;
        acp_prompt:
            a_turn_is_told_before_it_is_answered,
            what_was_advertised_can_be_prompted,
            a_model_is_shown_what_was_prompted,
            a_question_says_what_it_is_about,
            always_covers_one_command_and_no_is_no,
            a_question_is_taken_back_when_the_turn_is_cancelled,
            a_running_command_is_stopped,
            a_speaking_model_is_cut_off,
            a_cancel_right_behind_its_prompt_is_not_lost,
            a_busy_session_takes_no_second_prompt,
            sessions_do_not_wait_for_each_other,
            a_hundred_sessions_interleave,
            a_failure_of_the_model_is_an_error,
            an_edit_is_shown_as_a_diff,
            a_fast_stream_keeps_its_order,
            usage_is_told_with_its_cost,
            a_client_that_reads_late_gets_the_same_words,
            a_command_cannot_leave_the_fence_around_it,
            tool_output_is_fenced_and_raw_output_is_plain,
            a_command_cannot_hide_characters_from_a_question,
            a_client_that_does_not_answer_does_not_hold_the_turn,
            a_prompt_can_be_cancelled_by_its_id,
            calls_have_ids_of_their_own_whatever_the_model_says,
            the_first_prompt_names_the_session,
            a_plan_is_told_whole,
            usage_is_told_without_a_known_window,
            a_search_lists_the_matching_files,
            a_shortened_talk_is_told_to_who_understands_it,
            only_clients_that_list_options_are_offered_a_lasting_rule,
            an_edit_question_has_one_diff_of_the_whole_file,
            options_name_the_action_and_the_file;
        acp_options:
            what_is_current_can_be_chosen,
            the_answer_to_a_choice_is_the_whole_list,
            approval_is_what_was_chosen,
            what_is_unknown_cannot_be_chosen,
            a_prompt_runs_in_the_mode_that_was_set_before_it,
            modes_and_options_are_in_step,
            a_switch_in_a_turn_holds_from_the_next,
            a_mode_that_cannot_be_entered_is_refused;
    );
}
