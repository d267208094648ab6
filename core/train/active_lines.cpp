#include "train/active_lines.h"

#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace fvlm::train {
namespace {

constexpr std::string_view kernels_prefix = "kernels ", optimizer_prefix = "optimizer ";

void add_once(std::vector<std::string>& list, const std::string& text) {
  if (std::ranges::find(list, text) == list.end()) list.push_back(text);
}

std::string in_brackets(const std::vector<std::string>& texts) {
  return texts.empty() ? "" : fmt::format(" ({})", join(texts, ", "));
}

// "; attention-cudnn refused: works on cuda only", for each that was preferred by its name.
std::string refusals(const std::vector<const SelectionReport*>& reports) {
  std::vector<std::string> all;
  for (const SelectionReport* report : reports)
    for (const CandidateAnswer& one : report->considered)
      if (one.by_name && !one.fits) add_once(all, fmt::format("; {} refused: {}", one.plugin, one.reason));
  return join(all, "");
}

// The plugins in the order in which they were first chosen, each with what `detail` says of its choices.
template <class Detail>
std::string backends(const std::vector<const SelectionReport*>& reports, const Detail& detail) {
  std::vector<std::string> plugins, texts;
  for (const SelectionReport* report : reports) add_once(plugins, report->chosen);
  for (const std::string& plugin : plugins) {
    std::vector<std::string> details;
    for (const SelectionReport* report : reports)
      if (const std::string text = detail(*report); report->chosen == plugin && !text.empty()) add_once(details, text);
    texts.push_back(plugin + in_brackets(details));
  }
  return join(texts, ", ") + refusals(reports);
}

std::vector<const SelectionReport*> of_kind(const std::vector<SelectionReport>& reports, std::string_view kind) {
  std::vector<const SelectionReport*> found;
  for (const SelectionReport& report : reports)
    if (report.subject.starts_with(kind)) found.push_back(&report);
  return found;
}

std::string why(const SelectionReport& report) {
  return report.reason();
}

// "kernels-cpu (linear for some shapes, rope), reference (linear for some shapes)", in an order that does not depend on
// which operation a stage selected first, so that stages with the same choices have the same line.
std::string kernel_backends(std::vector<const SelectionReport*> reports) {
  std::map<std::string, std::set<std::string>> plugins; // by operation
  for (const SelectionReport* report : reports) plugins[report->subject].insert(report->chosen);
  std::ranges::sort(reports, [](const SelectionReport* a, const SelectionReport* b) {
    return std::tie(a->subject, a->chosen) < std::tie(b->subject, b->chosen);
  });
  return backends(reports, [&](const SelectionReport& report) {
    const std::string operation = report.subject.substr(kernels_prefix.size());
    return plugins[report.subject].size() > 1 ? operation + " for some shapes" : operation;
  });
}

std::string algorithm(const SelectionReport& report) {
  const std::string name =
      report.subject.starts_with(optimizer_prefix) ? report.subject.substr(optimizer_prefix.size()) : report.subject;
  return report.reason().empty() ? name : fmt::format("{}: {}", name, report.reason());
}

std::string precision_text(const plan::Plan& plan, at::Device device, const ActiveParts& parts) {
  std::string text;
  switch (plan.precision) {
  case plan::Precision::fp32:
    text = "fp32";
    break;
  case plan::Precision::bf16:
    text = "bf16, master weights in fp32";
    break;
  case plan::Precision::fp8:
    text = parts.did_without_fp8 ? "bf16, master weights in fp32 (\"fp8\" is the recipe's, and a plugin does without)"
                                 : "bf16, linears of the decoder's inner layers in fp8, master weights in fp32";
    break;
  case plan::Precision::fp16:
    text = "fp16, master weights in fp32, dynamic loss scale";
    break;
  case plan::Precision::tf32:
    if (product_precision(plan.precision, device, parts.operations) == plan::Precision::tf32)
      text = "fp32, linear layers multiplied in TF32";
    else if (device.is_cpu())
      text = "fp32 (\"tf32\" is the recipe's, and a CPU has none)";
    else
      text = "fp32 (\"tf32\" is the recipe's, and the plugin that takes linear layers multiplies in fp32; "
             "kernels = { linear = \"reference\" } multiplies in TF32)";
    break;
  }
  return plan.gradients == plan::Gradients::bf16 ? text + ", gradients in bf16" : text;
}

std::string recompute_text(const plan::Recompute& recompute) {
  if (recompute.light) return "norms and activation functions";
  if (recompute.every == 1) return "all layers";
  if (recompute.every > 1) return fmt::format("one layer of {}", recompute.every);
  if (recompute.layers.empty()) return "off";
  std::vector<std::string> layers;
  for (const int64_t layer : recompute.layers) layers.push_back(std::to_string(layer));
  return "layers " + join(layers, ", ");
}

std::string checkpointing_text(const plan::ActivationCheckpointing& checkpointing) {
  const std::string vision = recompute_text(checkpointing.vision), decoder = recompute_text(checkpointing.decoder);
  return vision == decoder ? vision : fmt::format("vision {}, decoder {}", vision, decoder);
}

std::string share_text(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

std::string packing_text(const SelectionReport& packer, const PackingStatistics& packing) {
  constexpr double large = 0.25; // of the rows that are computed
  const bool too_large = packing.padding_share - packing.padding_without() > large;
  const std::string queries =
      packing.queries == 0 ? ""
                           : fmt::format(" ({:.4g} queries in each, which see one another's positives)",
                                         static_cast<double>(packing.queries) / static_cast<double>(packing.packs));
  return fmt::format("{}; first step: {} sequences -> {} pack{}{}, padding {} (without packing {}){}",
                     backends({&packer}, why), grouped(packing.sequences), grouped(packing.packs),
                     packing.packs == 1 ? "" : "s", queries, share_text(packing.padding_share),
                     share_text(packing.padding_without()),
                     too_large ? "; a pack has a fixed capacity, and few samples fill it: set packing = { frames, "
                                 "tokens } as `data stats` suggests"
                               : "");
}

} // namespace

void PackingStatistics::add(const HostPack& pack) {
  ++packs;
  for (const PackedSample& packed : pack.samples) {
    queries += packed.sample->role == Sample::Role::query;
    for (const SampleText& text : packed.sample->texts) {
      const int64_t length = packed.sample->rows(text);
      ++sequences;
      tokens += length;
      longest = std::max(longest, length);
    }
  }
}

double PackingStatistics::padding_without() const {
  const auto all = static_cast<double>(sequences * longest);
  return all > 0 ? 1 - static_cast<double>(tokens) / all : 0;
}

plan::Precision product_precision(plan::Precision precision, at::Device device,
                                  const std::vector<SelectionReport>& operations) {
  if (precision != plan::Precision::tf32) return precision;
  const auto linear = of_kind(operations, "kernels linear");
  const bool by_us = !linear.empty() && std::ranges::all_of(linear, [](const SelectionReport* report) {
    return report->chosen == "reference";
  });
  return by_us && device.is_cuda() ? plan::Precision::tf32 : plan::Precision::fp32;
}

std::vector<std::string> active_lines(const plan::Plan& plan, const plan::Stage& stage, at::Device device,
                                      const ActiveParts& parts) {
  std::vector<std::string> lines;
  const auto add = [&](const char* what, const std::string& text) {
    if (!text.empty()) lines.push_back(fmt::format("{}: {}", what, text));
  };
  add("Using attention backend", backends(of_kind(parts.operations, "attention"), why));
  add("Using kernel backends", kernel_backends(of_kind(parts.operations, kernels_prefix)));
  add("Using loss backend", backends(of_kind(parts.operations, "loss"), why));
  add("Using optimizer backend", backends(of_kind(parts.optimizers, "optimizer"), algorithm));
  add("Using precision", precision_text(plan, device, parts));
  add("Using packer backend", packing_text(parts.packer, parts.packing));
  add("Using activation checkpointing", checkpointing_text(stage.activation_checkpointing));
  return lines;
}

} // namespace fvlm::train
