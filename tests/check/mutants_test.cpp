// Plugins that are right but for one thing that shows in large sizes, under other hosts, in other memory or at ties:
// defect by defect, the row of plugin check that finds it.
#include "workshop.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace fvlm::check {
namespace {

struct Mutant {
  const char* kind;
  const char* defect; // as tests/check/mutants/ names it
  const char* row;    // which finds it
};

void PrintTo(const Mutant& mutant, std::ostream* out) {
  *out << mutant.kind << " " << mutant.defect;
}

class Mutants : public testing::TestWithParam<Mutant> {
  void TearDown() override { unsetenv("FVLM_MUTANT"); }
};

TEST_P(Mutants, fail_the_row_of_their_defect) {
  const Mutant& mutant = GetParam();
  setenv("FVLM_MUTANT", mutant.defect, 1);
  Job job;
  job.library = plugin(std::string(mutant.kind) + "_mutant").string();
  job.only = std::string(mutant.kind) + "." + mutant.row;
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
};

INSTANTIATE_TEST_SUITE_P(plugins, Mutants, testing::ValuesIn(mutants), [](const auto& info) {
  return fmt::format("{}_{}_{}", info.param.kind, info.param.defect, info.param.row);
});

} // namespace
} // namespace fvlm::check
