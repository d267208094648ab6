// Each sabotaged plugin has one defect; the conformance test finds that one, under its name, and nothing else.
#include "workshop.h"

#include <gtest/gtest.h>

namespace fvlm::check {
namespace {

using Names = std::vector<std::string>;

struct Sabotage {
  const char* library; // as tests/check/CMakeLists.txt names it
  const char* only;    // the rows to run
  Names failing;
};

void PrintTo(const Sabotage& sabotage, std::ostream* out) {
  *out << sabotage.library;
}

Report check(const std::string& library, const std::string& only = "", std::chrono::seconds limit = no_hang) {
  Job job;
  job.library = plugin(library).string();
  job.only = only;
  job.quick = true; // --quick rows are enough to find these defects
  return check_plugin(job, supervision(limit));
}

Names failing(const Report& report) {
  Names names;
  for (const Entry& entry : report.entries)
    if (entry.outcome.state == State::failed) names.push_back(entry.name);
  return names;
}

class Sabotaged : public testing::TestWithParam<Sabotage> {};

TEST_P(Sabotaged, FailsOnlyTheChecksOfItsDefect) {
  const Sabotage& sabotage = GetParam();
  // A hang takes the whole time limit, so it is shorter there, but still far above the time of a check.
  const bool hangs = std::string_view(sabotage.library).ends_with("hangs_at_one_token");
  Report report = check(sabotage.library, sabotage.only, hangs ? std::chrono::seconds(20) : no_hang);
  EXPECT_EQ(failing(report), sabotage.failing) << failures(report);
}

const Sabotage all[] = {
    {"attention_writes_behind",
     "attention.",
     {"attention.reads_in_bounds", "attention.outputs_in_bounds", "attention.inputs_sealed", "attention.error_sink"}},
    {"attention_writes_before",
     "attention.",
     {"attention.strided_far", "attention.reads_in_bounds", "attention.outputs_in_bounds", "attention.error_sink"}},
    {"attention_writes_to_inputs", "attention.", {"attention.inputs_unchanged"}},
    {"attention_ignores_scale", "attention.", {"attention.scale"}},
    {"attention_aligns_top_left", "attention.", {"attention.causal_bottom_right"}},
    {"attention_ignores_groups", "attention.", {"attention.groups", "attention.even", "attention.shared_rows"}},
    {"attention_ignores_strides",
     "attention.",
     {"attention.strided", "attention.heads_apart", "attention.strided_oddly", "attention.outputs_in_bounds"}},
    {"attention_leaves_padding", "attention.", {"attention.even", "attention.shared_rows", "attention.padding_zeroed"}},
    {"attention_leaks_nan", "attention.", {"attention.padding_nan"}},
    {"attention_leaves_paged_padding",
     "attention.",
     {"attention.paged_padding", "attention.paged_prompts", "attention.paged_append"}},
    {"attention_reads_whole_pages", "attention.", {"attention.paged_pages"}},
    {"attention_appends_unrotated", "attention.", {"attention.paged_append"}},
    {"attention_overflows", "attention.", {"attention.large_scores"}},
    {"attention_not_deterministic", "attention.", {"attention.deterministic"}},
    {"attention_says_yes_and_refuses", "attention.", {"attention.head_dims", "attention.supports_agrees"}},
    {"attention_says_no_and_does_it_wrong", "attention.", {"attention.supports_agrees"}},
    {"attention_says_yes_to_nonsense", "attention.", {"attention.supports_nonsense"}},
    {"attention_changes_its_mind", "attention.supports_stable", {"attention.supports_stable"}},
    {"attention_scores_beyond_the_limit", "attention.supports_stable", {"attention.supports_stable"}},
    {"attention_gives_no_reason", "attention.supports", {"attention.supports_nonsense", "attention.supports_stable"}},
    {"attention_crashes_at_zero_rows", "attention.", {"attention.zero_rows"}},
    {"attention_ends_the_process", "attention.zero_rows", {"attention.zero_rows"}},
    {"attention_hangs_at_one_token", "attention.one_token", {"attention.one_token"}},
    {"attention_takes_more_workspace", "attention.", {"attention.workspace_exact"}},
    {"attention_trusts_the_workspace", "attention.", {"attention.workspace_short"}},
    {"attention_throws",
     "attention.",
     {"attention.workspace_short", "attention.error_sink", "attention.throws_nothing"}},
    {"attention_takes_any_size", "attention.", {"attention.query_sizes_refused", "attention.argument_sizes_refused"}},
    {"attention_wants_its_own_size", "attention.", {"attention.longer_structs"}},
    {"attention_says_nothing", "attention.", {"attention.error_sink"}},
    {"attention_trusts_the_sink", "attention.", {"attention.error_sink"}},
    {"attention_allocates", "attention.", {"attention.allocates_nothing"}},
    {"attention_leaks", "attention.", {"attention.allocates_nothing", "attention.memory_flat"}},
    {"attention_starts_threads", "attention.", {"attention.starts_no_threads"}},
    {"attention_opens_files", "attention.leaves", {"attention.leaves_no_descriptors"}},
    {"attention_flushes_to_zero", "attention.", {"attention.leaves_float_mode"}},
    {"attention_create_flushes_to_zero", "attention.", {"attention.leaves_float_mode"}},
    {"attention_nests_parallel_for", "attention.", {"attention.host_used_well"}},
    {"attention_exports_more", "library.", {"library.exports_entry_alone"}},
    {"attention_executable_stack", "library.", {"library.stack_not_executable"}},
    {"attention_needs_torch", "library.needs_no_torch", {"library.needs_no_torch"}},
    {"attention_relative_run_path", "library.", {"library.run_paths_absolute"}},
    {"attention_entry_takes_any_size", "library.", {"library.entry_refuses_size"}},
    {"attention_entry_takes_any_major", "library.", {"library.entry_refuses_major"}},
    {"attention_entry_moves", "library.", {"library.entry_idempotent"}},
    {"attention_table_moves", "library.", {"library.tables_stable"}},
    {"attention_table_for_anything", "library.", {"library.unknown_kinds"}},
    {"attention_constructor_aborts", "library.", {"library.opens"}},
    {"attention_constructor_starts_a_thread", "library.", {"library.opens"}},
    {"loss_ignores_accumulate", "loss.", {"loss.accumulates"}},
    {"loss_ignores_d_losses", "loss.", {"loss.d_losses_weigh"}},
    {"loss_leaks_nan", "loss.", {"loss.ignored_nan"}},
    {"loss_overflows", "loss.", {"loss.equal_logits", "loss.large_logits"}},
    {"loss_saves_always", // crashes in every row that asks for no gradients
     "loss.",
     {"loss.forward_float32", "loss.supports_agrees", "loss.starts_no_threads", "loss.starts_no_processes",
      "loss.leaves_no_descriptors", "loss.prints_nothing", "loss.leaves_signals", "loss.leaves_environment",
      "loss.leaves_scheduling", "loss.leaves_float_mode"}},
    {"optimizer_keeps_the_rates", "optimizer:adamw.steps", {"optimizer:adamw.steps_counted"}},
    {"optimizer_touches_gaps",
     "optimizer:",
     {"optimizer:adamw.gaps_untouched", "optimizer:adamw.strided", "optimizer:adamw.heads_apart",
      "optimizer:adamw.strided_oddly", "optimizer:adamw.unaligned", "optimizer:adamw.reads_in_bounds",
      "optimizer:adamw.reads_anew"}}, // the rows of slices with gaps compare the gaps, too
    {"optimizer_ignores_skip", "optimizer:", {"optimizer:adamw.skips"}},
    {"optimizer_ignores_scale", "optimizer:", {"optimizer:adamw.scales"}},
    {"optimizer_ignores_groups", "optimizer:", {"optimizer:adamw.groups"}},
    {"optimizer_rounds_down", "optimizer:", {"optimizer:adamw.rounded_copy"}},
    {"optimizer_bounds_exclude_fallback", "optimizer:adamw.h", {"optimizer:adamw.hyperparameters"}},
    {"optimizer_excludes_a_rate_of_0", "optimizer:adamw.h", {"optimizer:adamw.hyperparameters"}},
    {"optimizer_counts_itself", "optimizer:adamw.steps", {"optimizer:adamw.steps_counted"}},
    {"packer_overfills", "packer.", {"packer.capacity"}},
    {"packer_looks_at_one_dimension", "packer.", {"packer.capacity"}},
    {"packer_starves_the_first", "packer.", {"packer.first_item"}},
    {"packer_adds_an_empty_bin", "packer.", {"packer.empty_bins"}},
    {"packer_ignores_max_items", "packer.", {"packer.max_items"}},
    {"packer_places_oversized", "packer.oversized", {"packer.oversized"}},
    {"packer_remembers", "packer.pure", {"packer.pure"}},
    {"video_shows_the_next", "video.", {"video.shows_what_began"}},
    {"video_ignores_most_pixels", "video.", {"video.most_pixels"}},
    {"video_never_stops", "video.", {"video.stops"}},
    {"video_hides_the_end", "video.", {"video.behind_the_end"}},
    {"quantizer_passes_everything", "quantizer:clip8.", {"quantizer:clip8.straight_through"}},
    {"quantizer_truncates", "quantizer:int8.", {"quantizer:int8.round_trip"}},
    {"quantizer_divides_by_zero", "quantizer:int8.", {"quantizer:int8.zero_rows"}},
    {"quantizer_fakes_differently", "quantizer:int8.", {"quantizer:int8.fake_is_unpack"}},
    {"quantizer_needs_a_bias", "quantizer:int8.linear", {"quantizer:int8.linear_plain"}},
    {"kernels_ignores_residual", "kernels.rmsnorm", {"kernels.rmsnorm_residual"}},
    {"kernels_ignores_d_sum", "kernels.rmsnorm", {"kernels.rmsnorm_d_sum"}},
    {"kernels_aliases_wrongly", "kernels.rmsnorm", {"kernels.rmsnorm_aliased"}},
    {"kernels_fixes_epsilon", "kernels.rmsnorm", {"kernels.rmsnorm_epsilon"}},
    {"kernels_ignores_accumulate", "kernels.rmsnorm", {"kernels.rmsnorm_accumulates"}},
    {"kernels_sums_in_16_bits", "kernels.rmsnorm", {"kernels.rmsnorm_long_sums"}},
    {"kernels_ignores_inverse", "kernels.rope", {"kernels.rope_inverse", "kernels.rope_partial"}},
    {"kernels_forgets_the_rest", "kernels.rope", {"kernels.rope_partial"}},
    {"kernels_fixes_theta", "kernels.rope", {"kernels.rope_theta"}},
    {"kernels_borrows_strides",
     "strided,in_bounds",
     {"kernels.strided", "kernels.strided_oddly", "kernels.outputs_in_bounds"}},
    {"kernels_overflows", "kernels.swiglu", {"kernels.swiglu_large"}},
    {"kernels_keeps_the_query", "kernels.rmsnorm_float32", {"kernels.rmsnorm_float32"}},
    {"kernels_keeps_one_plan", "interleaved", {"kernels.calls_interleaved"}},
    {"kernels_remembers_the_forward", "interleaved", {"kernels.calls_interleaved"}},
    {"kernels_remembers_the_forward_of_a_shape", "interleaved", {"kernels.calls_interleaved"}},
    {"kernels_reads_what_it_wrote", "kernels.swiglu", {"kernels.swiglu_aliased"}},
    {"kernels_freezes_together", "kernels.scaled", {"kernels.scaled_rows_partly_frozen"}},
    {"kernels_adds_in_any_order", "kernels.rmsnorm,in_any_order", {"kernels.in_any_order"}},
    {"kernels_keeps_weights", "kernels.reads_anew", {"kernels.reads_anew"}},
    {"kernels_flattens_in_place", "kernels.rope", {"kernels.rope_aliased"}},
    {"kernels_packs_gradients", "kernels.strided", {"kernels.strided", "kernels.strided_oddly"}},
    {"kernels_forgets_where_it_begins", "kernels.swiglu", {"kernels.swiglu_many_rows"}},
    {"kernels_turns_back_in_no_room", "kernels.rope", {"kernels.rope_inverse", "kernels.rope_partial"}},
    {"kernels_has_no_backward", "library.", {"library.backward_with_forward"}},
};

INSTANTIATE_TEST_SUITE_P(plugins, Sabotaged, testing::ValuesIn(all),
                         [](const auto& info) { return std::string(info.param.library); });

} // namespace
} // namespace fvlm::check
