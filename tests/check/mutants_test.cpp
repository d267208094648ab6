// Plugins that are right but for one thing that shows in large sizes, under other hosts, in other memory or at ties:
// defect by defect, the row of plugin check that finds it.
#include "workshop.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

namespace fvlm::check {
namespace {

struct Mutant {
  const char* kind;   // or another plugin of its kind
  const char* defect; // as tests/check/mutants/ names it
  const char* row;    // which finds it
};

void PrintTo(const Mutant& mutant, std::ostream* out) {
  *out << mutant.kind << " " << mutant.defect;
}

// What names of a library's rows begin with.
std::string table_of(const std::string& kind) {
  if (kind == "optimizer") return "optimizer:steady";
  if (kind == "lion" || kind == "sgd") return "optimizer:" + kind;
  if (kind == "process" || kind == "exit") return "packer";
  return kind == "quantizer" ? "quantizer:int8" : kind;
}

class Mutants : public testing::TestWithParam<Mutant> {
  void TearDown() override { unsetenv("FVLM_MUTANT"); }
};

TEST_P(Mutants, fail_the_row_of_their_defect) {
  const Mutant& mutant = GetParam();
  setenv("FVLM_MUTANT", mutant.defect, 1);
  Job job;
  job.library = plugin(std::string(mutant.kind) + "_mutant").string();
  const std::string row = mutant.row;
  job.only = row.find('.') == std::string::npos ? table_of(mutant.kind) + "." + row : row;
  const Report report = check_plugin(job, supervision(std::chrono::seconds(240)));
  bool found = false;
  for (const Entry& entry : report.entries)
    found = found || (entry.name == job.only && entry.outcome.state == State::failed);
  EXPECT_TRUE(found) << job.only << " does not see it" << failures(report);
}

const Mutant mutants[] = {
    {"attention", "knows_1024_queries", "long_queries"},
    {"attention", "knows_4096_keys", "long_keys"},
    {"attention", "knows_16_heads", "more_heads"},
    {"attention", "knows_4_groups", "more_groups"},
    {"attention", "knows_128_segments", "more_segments"},
    {"attention", "knows_4096_rows_of_padding", "more_padding"},
    {"attention", "knows_16_pieces", "thread_counts"},
    {"attention", "counts_in_32_bits", "strided_far"},
    {"attention", "shares_a_row", "pieces_at_once"},
    {"attention", "looks_at_the_last_call", "instances_nested"},
    {"attention", "races_in_groups", "pieces_apart"},
    {"attention", "races_in_groups", "pieces_in_any_order"},
    {"attention", "keeps_the_cuts", "reads_anew"},
    {"attention", "refuses_strides", "strided"},
    {"attention", "refuses_head_strides", "heads_apart"},
    {"attention", "refuses_odd_strides", "strided_oddly"},
    {"attention", "refuses_unaligned", "unaligned"},
    {"attention", "reads_in_front", "reads_in_bounds"},
    {"attention", "reads_whole_vectors", "reads_in_bounds"},
    {"attention", "cuts_the_text", "error_sink"},
    {"attention", "changes_the_query", "inputs_sealed"},
    {"kernels", "knows_1024_columns", "swiglu_widths"},
    {"kernels", "knows_a_million", "swiglu_million"},
    {"kernels", "counts_rows_in_16_bits", "swiglu_row_counts"},
    {"kernels", "knows_2048_weights", "rmsnorm_widths"},
    {"kernels", "rounds_half_up", "swiglu_rounds_ties"},
    {"kernels", "rounds_half_up", "rmsnorm_rounds_ties"},
    {"kernels", "truncates", "swiglu_rounds_ties"},
    {"kernels", "takes_any_option", "supports_nonsense"},
    {"kernels", "counts_in_32_bits", "strided_far"},
    {"kernels", "keeps_by_totals", "reads_anew"},
    {"kernels", "adds_across_pieces", "pieces_apart"},
    {"kernels", "keeps_one_plan", "instances_in_turn"},
    {"kernels", "turns_after_512_rows", "deterministic"},
    {"kernels", "reads_in_front", "reads_in_bounds"},
    {"kernels", "reads_whole_vectors", "reads_in_bounds"},
    {"kernels", "refuses_odd_strides", "strided_oddly"},
    {"loss", "keeps_targets_in_16_bits", "vocabularies"},
    {"loss", "sums_32768_words", "vocabularies"},
    {"loss", "knows_8192_tokens", "token_counts"},
    {"loss", "knows_4096_features", "widths"},
    {"loss", "takes_the_first_largest", "equal_logits"},
    {"loss", "keeps_targets_by_totals", "reads_anew"},
    {"loss", "counts_in_32_bits", "strided_far"},
    {"loss", "adds_across_pieces", "pieces_apart"},
    {"loss", "refuses_strides", "strided"},
    {"loss", "reads_in_front", "reads_in_bounds"},
    {"loss", "reads_whole_vectors", "reads_in_bounds"},
    {"optimizer", "keeps_the_rates", "states_tell_all"},
    {"optimizer", "keeps_moments_by_instance", "instances_in_turn"},
    {"optimizer", "keeps_gradients_by_totals", "reads_anew"},
    {"optimizer", "keeps_segments", "reads_anew"},
    {"optimizer", "keeps_pointers", "in_any_order"},
    {"optimizer", "counts_calls", "states_tell_all"},
    {"optimizer", "counts_calls_of_all", "deterministic"},
    {"optimizer", "drops_a_tail_of_7", "thread_counts"},
    {"optimizer", "drops_a_tail_of_many", "thread_counts"},
    {"optimizer", "ignores_skip_of_long_arenas", "skips"},
    {"optimizer", "skips_by_sign", "skips"},
    {"optimizer", "multiplies_by_skip", "skips"},
    {"optimizer", "ignores_scale", "scales"},
    {"optimizer", "ignores_scale_of_long_segments", "scales"},
    {"optimizer", "ignores_scale_of_bfloat16", "scales"},
    {"optimizer", "cuts_bfloat16", "gradients_bfloat16"},
    {"optimizer", "takes_group_0", "groups_apart"},
    {"optimizer", "knows_4_groups", "many_groups"},
    {"optimizer", "knows_64_groups", "many_groups"},
    {"optimizer", "knows_64_segments", "many_groups"},
    {"optimizer", "knows_a_million", "million_elements"},
    {"optimizer", "clips_long_segments", "million_elements"},
    {"optimizer", "counts_in_32_bits", "far_segments"},
    {"optimizer", "touches_gaps", "gaps_untouched"},
    {"optimizer", "rounds_ties_away", "rounds_ties"},
    {"optimizer", "truncates", "rounded_copy"},
    {"optimizer", "leaves_the_master", "rounded_copy"},
    {"optimizer", "forgets_the_copy", "rounded_copy"},
    {"optimizer", "shares_scratch", "instances_nested"},
    {"optimizer", "trusts_the_workspace", "leftovers_unread"},
    {"optimizer", "reads_in_front", "reads_in_bounds"},
    {"optimizer", "turns_with_the_flag", "in_any_order"},
    {"optimizer", "decays_by_itself", "stands_still"},
    {"optimizer", "divides_by_zero", "stays_finite"},
    {"optimizer", "names_states_alike", "states"},
    {"optimizer", "climbs", "descends"},
    {"lion", "takes_group_0", "groups_apart"},
    {"lion", "keeps_moments_by_instance", "instances_in_turn"},
    {"lion", "drops_a_tail_of_7", "thread_counts"},
    {"lion", "clips_long_segments", "million_elements"},
    {"sgd", "keeps_the_rates", "states_tell_all"},
    {"sgd", "climbs", "descends"},
    {"sgd", "cuts_bfloat16", "gradients_bfloat16"},
    {"sgd", "clips_long_segments", "million_elements"},
    {"packer", "by_time", "pure_anywhere"},
    {"packer", "by_pid", "pure_anywhere"},
    {"packer", "by_parent", "pure_anywhere"},
    {"packer", "by_environment", "pure_anywhere"},
    {"packer", "by_threads", "pure_anywhere"},
    {"packer", "by_thread", "pure_anywhere"},
    {"packer", "by_clock", "pure_anywhere"},
    {"packer", "by_day", "pure_anywhere"},
    {"packer", "by_rand", "pure_anywhere"},
    {"packer", "by_random", "pure"},
    {"packer", "by_address_of_memory", "pure_anywhere"},
    {"packer", "by_address_of_instance", "pure_anywhere"},
    {"packer", "by_address_of_stack", "pure_anywhere"},
    {"packer", "by_calls_of_all", "pure"},
    {"packer", "by_system_call", "same_elsewhere"},
    {"packer", "by_address_of_code", "same_elsewhere"},
    {"packer", "by_all_variables", "same_elsewhere"},
    {"packer", "by_folder", "same_elsewhere"},
    {"packer", "by_loader", "same_elsewhere"},
    {"packer", "opens_by_time", "same_elsewhere"},
    {"packer", "by_pid", "same_elsewhere"},
    {"packer", "by_environment", "same_elsewhere"},
    {"packer", "keeps_sizes_by_totals", "pure_anywhere"},
    {"packer", "keeps_sizes_in_32_bits", "wide_sizes"},
    {"packer", "counts_bins_in_16_bits", "many_bins"},
    {"packer", "knows_4_dimensions", "many_dimensions"},
    {"packer", "knows_16_dimensions", "many_dimensions"},
    {"packer", "knows_64_items_a_bin", "max_items"},
    {"packer", "starves_the_first_of_many", "many_items"},
    {"packer", "shares_scratch", "two_threads"},
    {"packer", "writes_sizes_and_puts_back", "inputs_sealed"},
    {"process", "handles_fpe_in_pack", "leaves_signals"},
    {"process", "once_handles_fpe_in_pack", "leaves_signals"},
    {"process", "ignores_pipe_in_create", "leaves_signals"},
    {"process", "handles_a_real_time_signal_in_supports", "leaves_signals"},
    {"process", "blocks_interrupts_in_pack", "leaves_signals"},
    {"process", "blocks_interrupts_in_destroy", "leaves_signals"},
    {"process", "lays_a_stack_in_create", "leaves_signals"},
    {"process", "sets_an_alarm_in_pack", "leaves_signals"},
    {"process", "sets_a_timer_in_refusing", "leaves_signals"},
    {"process", "opens_in_pack", "leaves_no_descriptors"},
    {"process", "once_opens_in_pack", "leaves_no_descriptors"},
    {"process", "opens_in_supports", "leaves_no_descriptors"},
    {"process", "duplicates_in_create", "leaves_no_descriptors"},
    {"process", "makes_a_pipe_in_destroy", "leaves_no_descriptors"},
    {"process", "closes_input_in_pack", "leaves_no_descriptors"},
    {"process", "stops_blocking_in_pack", "leaves_no_descriptors"},
    {"process", "sets_a_variable_in_pack", "leaves_environment"},
    {"process", "once_sets_a_variable_in_supports", "leaves_environment"},
    {"process", "unsets_a_variable_in_create", "leaves_environment"},
    {"process", "locale_in_pack", "leaves_environment"},
    {"process", "once_locale_in_create", "leaves_environment"},
    {"process", "thread_locale_in_pack", "leaves_environment"},
    {"process", "umask_in_pack", "leaves_environment"},
    {"process", "once_umask_in_supports", "leaves_environment"},
    {"process", "folder_in_destroy", "leaves_environment"},
    {"process", "affinity_in_pack", "leaves_scheduling"},
    {"process", "once_affinity_in_supports", "leaves_scheduling"},
    {"process", "nice_in_pack", "leaves_scheduling"},
    {"process", "limit_in_create", "leaves_scheduling"},
    {"process", "thread_name_in_pack", "leaves_scheduling"},
    {"process", "not_dumpable_in_pack", "leaves_scheduling"},
    {"process", "timer_slack_in_supports", "leaves_scheduling"},
    {"process", "outlives_its_parent_in_pack", "leaves_scheduling"},
    {"process", "starts_a_thread_in_pack", "starts_no_threads"},
    {"process", "once_starts_a_thread_in_supports", "starts_no_threads"},
    {"process", "leaves_a_thread_in_create", "starts_no_threads"},
    {"process", "forks_in_pack", "starts_no_processes"},
    {"process", "once_forks_in_supports", "starts_no_processes"},
    {"process", "forks_by_system_call_in_pack", "starts_no_processes"},
    {"process", "leaves_a_child_in_destroy", "starts_no_processes"},
    {"process", "clones_in_pack", "starts_no_processes"},
    {"process", "runs_a_command_in_create", "starts_no_processes"},
    {"process", "rounds_up_in_pack", "leaves_float_mode"},
    {"process", "flushes_to_zero_in_supports", "leaves_float_mode"},
    {"process", "once_flushes_to_zero_in_supports", "leaves_float_mode"},
    {"process", "takes_denormals_for_zero_in_create", "leaves_float_mode"},
    {"process", "traps_division_in_destroy", "leaves_float_mode"},
    {"process", "halves_the_precision_in_refusing", "leaves_float_mode"},
    {"process", "prints_in_pack", "prints_nothing"},
    {"process", "once_prints_in_create", "prints_nothing"},
    {"process", "complains_in_supports", "prints_nothing"},
    {"process", "leaks_in_create", "instances_flat"},
    {"process", "leaks_in_refused_create", "instances_flat"},
    {"process", "leaks_pages_in_destroy", "instances_flat"},
    {"process", "opens_in_create", "instances_flat"},
    {"process", "leaks_in_supports", "queries_flat"},
    {"process", "leaks_in_refusing", "refusals_flat"},
    {"process", "leaks_pages_in_pack", "memory_flat"},
    {"process", "leaks_in_pack", "used_instances_flat"},
    {"process", "prints_in_destructor", "exits_cleanly"},
    {"process", "crashes_in_destructor", "exits_cleanly"},
    {"process", "hangs_in_destructor", "exits_cleanly"},
    {"process", "ends_with_0_in_destructor", "exits_cleanly"},
    {"process", "writes_the_query_in_supports", "inputs_sealed"},
    {"process", "writes_the_config", "inputs_sealed"},
    {"process", "writes_the_host", "creates"},
    {"process", "umask_in_entry", "library.enters"},
    {"process", "flushes_to_zero_in_entry", "library.enters"},
    {"process", "leaves_a_thread_in_entry", "library.enters"},
    {"process", "umask_in_constructor", "library.opens"},
    {"process", "prints_in_constructor", "library.opens"},
    {"process", "opens_in_constructor", "library.opens"},
    {"exit", "", "library.no_exit_handlers"},
    {"exit", "prints_at_exit", "exits_cleanly"},
    {"exit", "crashes_at_exit", "exits_cleanly"},
    {"exit", "hangs_at_exit", "exits_cleanly"},
    {"exit", "ends_with_0_at_exit", "exits_cleanly"},
    {"quantizer", "rounds_ties_away", "int8_codes"},
    {"quantizer", "rounds_half_up", "int8_codes"},
    {"quantizer", "truncates", "round_trip"},
    {"quantizer", "fakes_ties_away", "fake_is_unpack"},
    {"quantizer", "multiplies_by_the_inverse", "int8_codes"},
    {"quantizer", "divides_by_128", "int8_codes"},
    {"quantizer", "forgets_the_sign", "int8_codes"},
    {"quantizer", "wraps_codes", "round_trip"},
    {"quantizer", "keeps_scales_above", "tiny_values"},
    {"quantizer", "knows_4096_columns", "int8_codes"},
    {"quantizer", "knows_1024_biases", "large_sizes"},
    {"quantizer", "knows_2048_tokens", "large_sizes"},
    {"quantizer", "counts_in_16_bits", "large_sizes"},
    {"quantizer", "drops_a_tail_of_7", "thread_counts"},
    {"quantizer", "drops_a_tail_of_many", "thread_counts"},
    {"quantizer", "adds_across_pieces", "pieces_apart"},
    {"quantizer", "keeps_weights_by_address", "reads_anew"},
    {"quantizer", "keeps_what_it_packed", "calls_interleaved"},
    {"quantizer", "shares_scratch", "instances_nested"},
    {"quantizer", "trusts_the_workspace", "leftovers_unread"},
    {"quantizer", "ignores_strides", "strided"},
    {"quantizer", "reads_in_front", "reads_in_bounds"},
    {"quantizer", "reads_whole_vectors", "reads_in_bounds"},
    {"quantizer", "blocks_the_largest", "straight_through"},
    {"quantizer", "scales_the_gradient", "straight_through"},
    {"quantizer", "writes_weights_and_puts_back", "inputs_sealed"},
};

INSTANTIATE_TEST_SUITE_P(plugins, Mutants, testing::ValuesIn(mutants), [](const auto& info) {
  std::string name = fmt::format("{}_{}_{}", info.param.kind, info.param.defect, info.param.row);
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

} // namespace
} // namespace fvlm::check
