#include "recipe/rules.h"

#include "base/text.h"
#include "recipe/positions.h"
#include "recipe/schema/type.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fvlm::recipe {
namespace {

using namespace plan;

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool looks_like_path(const std::string& text) {
  return text.find('/') != std::string::npos || text.starts_with(".");
}

// Of kernels: chosen by score alone.
constexpr const char* untimed_kinds[] = {"optimizer", "packer", "quantizer", "video"};

std::vector<std::string> trained_groups(const Plan& plan, const Stage& stage) {
  std::vector<std::string> groups = parameter_groups(plan.model);
  std::erase_if(groups, [&](const std::string& group) { return contains(stage.freeze, group); });
  return groups;
}

// Calls visit(part of the path, table, whether each trained group needs an entry) for each table by group of an
// optimizer.
template <class O, class Visit>
void each_group_table(O& optimizer, Visit&& visit) {
  visit(".lr", common(optimizer).lr, true);
  visit(".weight_decay", common(optimizer).weight_decay, false);
  if (auto* muon = std::get_if<Muon>(&optimizer)) visit(".others.lr", muon->others.lr, true);
}

class Rules {
 public:
  Rules(Reader& reader, const Plan& plan) : reader_(reader), plan_(plan), groups_(parameter_groups(plan.model)) {}

  void check() {
    for (const Stage& stage : plan_.stages) {
      if (stage.name.empty()) continue; // it was no stage
      std::string path = "stages" + key_part(stage.name);
      reader_.within(path, [&] {
        check_start(stage);
        if (reader_.clean("model")) check_groups(stage), check_fresh_towers(stage);
        check_quantization(stage);
        check_batch(stage);
        return true;
      });
      earlier_.push_back(stage.name);
    }
    check_best_by();
    check_gradients();
    check_positions();
    check_quantization_is_used();
    check_timed_kernels();
  }

 private:
  bool clean(std::string_view part) const { return reader_.clean(reader_.path() + std::string(part)); }

  void check_start(const Stage& stage) {
    if (stage.name == "model")
      reader_.complain_at(".name", "a stage cannot be called 'model': `from` means the towers by it");
    if (stage.from.empty() || stage.from == "model" || looks_like_path(stage.from)) return;
    if (contains(earlier_, stage.from)) return;
    bool later =
        std::any_of(plan_.stages.begin(), plan_.stages.end(), [&](const Stage& s) { return s.name == stage.from; });
    std::string what = later ? fmt::format("the stage '{}' does not come before this one", stage.from)
                             : fmt::format("no stage before this one is called '{}'", stage.from);
    auto names = earlier_;
    names.emplace_back("model");
    auto near = nearest(stage.from, names);
    reader_.complain_at(".from", what,
                        near && !later ? fmt::format("did you mean '{}'? the path of a checkpoint has a '/'", *near)
                                       : "an earlier stage, \"model\", or the path of a checkpoint (with a '/')");
  }

  void check_groups(const Stage& stage) {
    for (size_t i = 0; i < stage.freeze.size(); ++i)
      known_group(".freeze" + index_part(i + 1), stage.freeze[i], groups_);
    auto trained = trained_groups(plan_, stage);
    if (trained.empty() && clean(".freeze"))
      reader_.complain_at(".freeze", "every group is frozen: nothing is left to train");
    if (!clean(".optimizer")) return;
    auto keys = groups_;
    keys.push_back("default");
    each_group_table(stage.optimizer, [&](const char* part, const ByGroup& table, bool complete) {
      std::string at = std::string(".optimizer") + part;
      for (const auto& [group, rate] : table) known_group(at + key_part(group), group, keys);
      if (!complete || table.contains("default")) return;
      for (const auto& group : trained)
        if (!table.contains(group))
          reader_.complain_at(at, fmt::format("the group '{}' has no learning rate", group),
                              fmt::format("add it (or `default`), or freeze = {{ \"{}\" }}", group));
    });
    if (const auto* plugin = std::get_if<PluginOptimizer>(&stage.optimizer))
      for (const char* name : {"lr", "weight_decay"})
        if (plugin->options.contains(name))
          reader_.complain_at(fmt::format(".optimizer.options.{}", name),
                              fmt::format("`{}` is none of the algorithm's options", name),
                              "write it beside `options`: it may differ by parameter group");
  }

  void known_group(const std::string& part, const std::string& group, const std::vector<std::string>& known) {
    if (!contains(known, group))
      reader_.complain_at(part, fmt::format("there is no parameter group '{}'", group), advise_key(group, known));
  }

  void check_fresh_towers(const Stage& stage) {
    auto layers = [&](const char* part, const Recompute& recompute, int64_t count) {
      for (int64_t layer : recompute.layers)
        if (layer >= count)
          reader_.complain_at(part,
                              fmt::format("there is no layer {}: the tower has {}, counted from 0", layer, count));
    };
    if (auto* vision = std::get_if<Dinov2>(&plan_.model.vision))
      layers(".activation_checkpointing.vision", stage.activation_checkpointing.vision, vision->layers);
    auto* decoder = std::get_if<Llama>(&plan_.model.decoder);
    if (decoder) layers(".activation_checkpointing.decoder", stage.activation_checkpointing.decoder, decoder->layers);
  }

  void check_positions() {
    const auto* decoder = std::get_if<Llama>(&plan_.model.decoder);
    if (!decoder || !reader_.clean("model")) return;
    for (const LongSequences& long_ones : longer_than(plan_, decoder->max_positions))
      if (reader_.clean(long_ones.mix))
        reader_.complain_at(long_ones.mix + ".max_text_tokens", long_ones.what, shorter_sequences);
  }

  void check_quantization(const Stage& stage) {
    if (stage.quantization_aware && !plan_.quantization && reader_.clean("quantization"))
      reader_.complain_at(".quantization_aware", "the recipe has no quantization to train for",
                          "add quantization = { scheme = \"int8\" } to the recipe");
  }

  void check_batch(const Stage& stage) {
    if (reader_.reads_plan_file) return; // of an earlier version, perhaps
    if (!stage.batch.samples || *stage.batch.samples <= stage.samples || !clean(".batch") || !clean(".samples")) return;
    reader_.complain_at(".batch",
                        fmt::format("a batch of {} samples is more than the {} that the stage sees: its one step would "
                                    "be smaller than it says",
                                    grouped(*stage.batch.samples), grouped(stage.samples)),
                        fmt::format("batch = {}, or more samples", stage.samples));
  }

  // Plan files of earlier versions may have it.
  void check_quantization_is_used() {
    if (!plan_.quantization || reader_.reads_plan_file || !reader_.clean("quantization") || !reader_.clean("stages"))
      return;
    const auto& stages = plan_.stages;
    if (std::none_of(stages.begin(), stages.end(), [](const Stage& stage) { return stage.quantization_aware; }))
      reader_.complain_at("quantization",
                          "no stage of the recipe is quantization_aware, so nothing would be quantized: `export` does "
                          "not do it yet",
                          "leave it out, or train through it: quantization_aware = true in a stage");
  }

  // One "measure" for every kind is for those that can be timed.
  void check_timed_kernels() {
    const auto& wishes = plan_.kernels.wishes;
    if (reader_.reads_plan_file || !reader_.clean("kernels") || wishes.empty()) return;
    const WishList& first = wishes.begin()->second;
    if (std::all_of(wishes.begin(), wishes.end(), [&](const auto& each) { return each.second == first; })) return;
    for (const char* kind : untimed_kinds)
      if (contains(wishes.at(kind), "measure"))
        reader_.complain_at("kernels" + key_part(kind), fmt::format("backends of '{}' are not timed", kind),
                            "write \"auto\" in place of \"measure\"");
  }

  void check_gradients() {
    if (plan_.gradients == Gradients::fp32 || !reader_.clean("precision")) return;
    if (plan_.precision != Precision::bf16)
      reader_.complain_at("gradients", "gradients are bf16 only where precision is", "leave gradients out");
    for (const Stage& stage : plan_.stages)
      if (stage.quantization_aware)
        reader_.complain_at("gradients", "a stage that is quantization_aware wants gradients in fp32",
                            "leave gradients out");
  }

  void check_best_by() {
    if (!plan_.checkpoint.best_by || !reader_.clean("stages")) return;
    std::vector<std::string> names;
    for (const Stage& stage : plan_.stages)
      for (const auto& set : stage.evaluation.sets) names.push_back(set.name);
    if (!contains(names, *plan_.checkpoint.best_by))
      reader_.complain_at("checkpoint.best_by",
                          fmt::format("no stage has an evaluation set '{}'", *plan_.checkpoint.best_by),
                          advise_key(*plan_.checkpoint.best_by, names));
  }

  Reader& reader_;
  const Plan& plan_;
  std::vector<std::string> groups_;
  std::vector<std::string> earlier_; // stages before the one that is looked at
};

} // namespace

void check_plan(Reader& reader, const Plan& plan) {
  if (reader.mistakes.full()) return; // what is only counted is not known, and would be told again in other words
  Rules(reader, plan).check();
}

void derive(Reader& reader, Plan& plan) {
  if (auto* vision = std::get_if<Dinov2>(&plan.model.vision)) vision->mlp = vision->mlp.value_or(4 * vision->width);
  if (auto* decoder = std::get_if<Llama>(&plan.model.decoder)) {
    decoder->kv_heads = decoder->kv_heads.value_or(decoder->heads);
    decoder->mlp = decoder->mlp.value_or(4 * decoder->width);
  }
  for (const char* kind : untimed_kinds) {
    auto& wishes = plan.kernels.wishes.at(kind);
    std::replace(wishes.begin(), wishes.end(), std::string("measure"), std::string("auto"));
  }
  std::string before = "model";
  for (Stage& stage : plan.stages) {
    if (stage.from.empty()) stage.from = before;
    before = stage.name;
    std::string optimizer = "stages" + key_part(stage.name) + ".optimizer";
    auto trained = trained_groups(plan, stage);
    each_group_table(stage.optimizer, [&](const char* part, ByGroup& table, bool) {
      ByGroup resolved;
      for (const auto& group : trained) {
        auto own = table.find(group), common = table.find("default");
        if (own == table.end() && common == table.end()) continue;
        resolved[group] = own != table.end() ? own->second : common->second;
        if (own == table.end()) reader.inherit(optimizer + part + key_part(group), optimizer + part + ".default");
      }
      table = std::move(resolved);
    });
    derive_steps(stage);
  }
}

void derive_steps(Stage& stage) {
  const bool counted = stage.samples > 0 && stage.batch.samples && !stage.batch.tokens && !stage.batch.frames;
  stage.steps =
      counted ? std::optional((stage.samples + *stage.batch.samples - 1) / *stage.batch.samples) : std::nullopt;
  stage.warmup_steps = std::nullopt;
  if (stage.steps) stage.warmup_steps = std::llround(warmup(stage.schedule) * static_cast<double>(*stage.steps));
}

} // namespace fvlm::recipe
