#include "check/families.h"

#include "check/context.h"

#include <algorithm>

namespace fvlm::check {
namespace {

constexpr CheckedFamily families[] = {
    {.name = "attention",
     .table = attention_table,
     .typical = attention_trials,
     .odd = attention_odd_trials,
     .parallel = attention_parallel_trials,
     .sweep = attention_sweep,
     .takes_any_rows = true},
    {.name = "loss",
     .table = loss_table,
     .typical = loss_trials,
     .odd = loss_odd_trials,
     .parallel = loss_parallel_trials,
     .sweep = loss_sweep,
     .takes_any_rows = true},
    {.name = "optimizer",
     .table = optimizer_table,
     .typical = optimizer_trials,
     .odd = optimizer_odd_trials,
     .sweep = optimizer_sweep},
    {.name = "packer",
     .table = packer_table,
     .typical = packer_trials,
     .parallel = packer_parallel_trials,
     .on_host = true},
    {.name = "quantizer",
     .table = quantizer_table,
     .typical = quantizer_trials,
     .odd = quantizer_odd_trials,
     .sweep = quantizer_sweep},
    {.name = "kernels",
     .table = kernels_table,
     .typical = kernels_trials,
     .odd = kernels_odd_trials,
     .parallel = kernels_parallel_trials,
     .sweep = kernels_sweep,
     .takes_any_rows = true},
    {.name = "video", .table = video_table, .typical = video_trials, .on_host = true},
};

std::vector<Trial> trials_of(CheckedFamily::Trials make, Context& context) {
  return make ? make(context) : std::vector<Trial>();
}

} // namespace

std::string family_of(std::string_view kind) {
  kind.remove_prefix(std::min(kind.size(), kind.find('.') + 1));
  return std::string(kind.substr(0, kind.find('/')));
}

std::string short_kind(std::string_view kind) {
  auto variant = kind.find(':');
  return family_of(kind) + (variant == std::string_view::npos ? "" : std::string(kind.substr(variant)));
}

const CheckedFamily& family_of_kind(std::string_view kind) {
  const std::string name = family_of(kind);
  for (const CheckedFamily& family : families)
    if (family.name == name) return family;
  throw RowAborted{State::failed, fmt::format("no checks for a kind of the family '{}'", name)};
}

std::span<const Table> tables() {
  static const std::vector<Table> all = [] {
    std::vector<Table> tables{library_table()};
    for (const CheckedFamily& family : families) tables.push_back(family.table());
    return tables;
  }();
  return all;
}

const Table& table_of(std::string_view family) {
  auto all = tables();
  auto found = std::ranges::find(all, family, &Table::family);
  if (found == all.end())
    throw RowAborted{State::failed, fmt::format("no checks for a kind of the family '{}'", family)};
  return *found;
}

std::vector<Trial> typical_trials(Context& context) {
  return trials_of(family_of_kind(context.kind).typical, context);
}

std::vector<Trial> odd_trials(Context& context) {
  return trials_of(family_of_kind(context.kind).odd, context);
}

std::vector<Trial> parallel_trials(Context& context) {
  return trials_of(family_of_kind(context.kind).parallel, context);
}

std::vector<Trial> sweep_trials(Context& context) {
  return trials_of(family_of_kind(context.kind).sweep, context);
}

std::vector<Trial> repeatable_trials(Context& context) {
  auto trials = context.typical();
  if (family_of(context.kind) == "packer")
    for (const Trial& trial : packer_sets()) trials.push_back(trial);
  return trials;
}

} // namespace fvlm::check
