// Checks of memory layouts: strides of rows and heads, alignment, guard pages around tensors.
#include "check/families.h"
#include "check/generic.h"

namespace fvlm::check {
namespace {

bool takes_any_rows(Context& context) {
  return family_of_kind(context.kind).takes_any_rows;
}

Outcome placed(Context& context, Placement placement, bool may_refuse) {
  const Variation variation{.placement = placement};
  return may_refuse ? expect_correct_or_refused(context, context.small(), variation)
                    : expect_correct(context, context.small(), variation);
}

// A GPU's vector loads need addresses and strides that are multiples of 16 bytes; a CPU takes any.
bool may_refuse_odd_ones(Context& context) {
  return !takes_any_rows(context) || !context.device.is_cpu();
}

Outcome strided(Context& context) {
  if (context.device.is_cpu() || !takes_any_rows(context))
    return placed(context, Placement::wide_rows, may_refuse_odd_ones(context));
  // A GPU library may need more workspace for strided tensors than requirements() computed for contiguous ones.
  if (family_of(context.kind) == "attention") return placed(context, Placement::wide_rows, true);
  const Outcome outcome = expect_correct(context, context.typical(), {.placement = Placement::wide_rows});
  return outcome.state == State::ok ? placed(context, Placement::wide_rows, true) : outcome;
}
Outcome heads_apart(Context& context) {
  for (const Placement placement : {Placement::wide_heads, Placement::head_major})
    if (Outcome outcome = placed(context, placement, may_refuse_odd_ones(context)); outcome.state != State::ok)
      return outcome;
  return ok();
}
Outcome strided_oddly(Context& context) {
  return placed(context, Placement::odd_rows, may_refuse_odd_ones(context));
}
Outcome unaligned(Context& context) {
  return placed(context, Placement::misaligned, may_refuse_odd_ones(context));
}
Outcome strided_far(Context& context) {
  if (!context.device.is_cpu()) return not_applicable("a GPU has no memory for rows so far apart");
  if (context.subject.built_in()) return not_applicable("the reference is plain ATen");
  return expect_correct(context, context.small(), {.placement = Placement::far_rows, .unguarded = true});
}
Outcome reads_in_bounds(Context& context) {
  if (!context.device.is_cpu()) return not_applicable("guard pages are for host memory");
  for (const Placement placement : {Placement::page_end, Placement::page_start})
    if (Outcome outcome = placed(context, placement, true); outcome.state != State::ok) return outcome;
  return ok();
}

} // namespace

std::vector<Check> placement_checks(const std::string& needs) {
  return {
      {"strided", "rows that lie further apart are computed right; or refused, where the header does not allow them",
       strided, needs},
      {"heads_apart", "heads that lie further apart, or each by itself, are computed right; on a GPU or refused",
       heads_apart, needs},
      {"strided_oddly", "rows and heads at unaligned distances are computed right; on a GPU or refused", strided_oddly,
       needs},
      {"unaligned", "tensors that begin one element after an aligned address are computed right; on a GPU or refused",
       unaligned, needs},
      {"strided_far", "rows so far apart that 32 bits do not count the elements between them", strided_far,
       needs + ",strided"},
      {"reads_in_bounds", "nothing before the first byte and behind the last byte of a tensor is read", reads_in_bounds,
       needs},
  };
}

} // namespace fvlm::check
