#include "train/step_totals.h"

namespace fvlm::train {

StepTotals sum_over(const dist::Ranks& ranks, StepTotals own) {
  if (!ranks.are_several()) return own;
  if (ranks.context_rank() > 0) { // its packs are those of the first rank of the context, which counts them
    own.failed_decodes = 0;
    own.counted = own.flops = 0;
    own.used = {.of_term = std::vector<double>(own.used.of_term.size())};
  }
  std::vector<double> numbers;
  const auto visit = [&](const auto& each) {
    each(own.ran_out_of_memory);
    each(own.cut_packs);
    each(own.dropped_plugin);
    each(own.stop_requested);
    each(own.failed_decodes);
    each(own.counted);
    each(own.flops);
    each(own.used_rows);
    each(own.all_rows);
    each(own.used.samples);
    each(own.used.text_tokens);
    each(own.used.frames);
    each(own.used.left_out_rows);
    for (double& count : own.used.of_term) each(count);
  };
  visit([&](const auto& number) { numbers.push_back(static_cast<double>(number)); });
  ranks.sum(numbers);
  size_t next = 0;
  visit([&]<class Number>(Number& number) { number = static_cast<Number>(numbers[next++]); });
  return own;
}

} // namespace fvlm::train
