// The page that `plan` prints: for each section what the author set and the main values. Defaults are only counted.
#include "base/terminal.h"
#include "base/text.h"
#include "recipe/print.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

namespace fvlm::recipe {
namespace {

std::string percent(double share) {
  return fmt::format("{:.3g} %", share * 100);
}

// Puts a list in parentheses, so that its ends are visible among other values.
std::string inline_text(const Json& value) {
  return value.is_array() && value.size() > 1 && value.size() <= 8 ? fmt::format("({})", value_text(value))
                                                                   : value_text(value);
}

// The values of a Plan, by path, with whether each was written by the author.
class Values {
 public:
  explicit Values(const Resolved& resolved) : resolved_(resolved), leaves_(plan_leaves(resolved.plan)) {
    for (size_t i = 0; i < leaves_.size(); ++i) by_path_.emplace(leaves_[i].path, i);
  }

  bool written(const std::string& path) const { return resolved_.sources.contains(path); }

  // The values below `path` that were written or are listed in `always`, like "weight_decay 0.01", "clip 1".
  std::vector<std::string> below(const std::string& path, const std::set<std::string>& always = {},
                                 const std::set<std::string>& never = {}) const {
    std::vector<std::string> parts;
    for (const size_t i : leaves_below(path)) {
      const Leaf& leaf = leaves_[i];
      std::string name = name_below(leaf.path, path);
      if (name.empty() || never.contains(name) || (leaf.field && leaf.field->derived)) continue;
      if (written(leaf.path) || always.contains(name)) parts.push_back(name + " " + inline_text(leaf.value));
    }
    return parts;
  }

  // The common value of a table's entries, or each: "lr 3e-5", "lr connector 0.001, vision 1e-5".
  std::string by_group(const std::string& path, const std::string& name) const {
    std::vector<std::string> parts;
    std::set<std::string> different;
    for (const size_t i : leaves_below(path + key_part(name)))
      if (std::string group = name_below(leaves_[i].path, path + key_part(name)); !group.empty()) {
        different.insert(value_text(leaves_[i].value));
        parts.push_back(group + " " + value_text(leaves_[i].value));
      }
    return fmt::format("{} {}", name, different.size() == 1 ? *different.begin() : join(parts, ", "));
  }

  // The number of values that were written, and the number of defaults.
  std::pair<size_t, size_t> counts() const {
    size_t set = 0, filled = 0;
    for (const auto& leaf : leaves_)
      if (!leaf.field || !leaf.field->derived) ++(written(leaf.path) ? set : filled);
    return {set, filled};
  }

  // The --set and --arg options that changed a value, each once, in the order of the Plan.
  std::vector<std::string> command_line() const {
    std::vector<std::string> words;
    for (const auto& leaf : leaves_) {
      auto found = resolved_.sources.find(leaf.path);
      if (found == resolved_.sources.end() || !found->second.starts_with("--")) continue;
      std::string word = found->second.substr(0, found->second.rfind(" ("));
      if (std::ranges::find(words, word) == words.end()) words.push_back(word);
    }
    return words;
  }

 private:
  // Returns indices in the order of the Plan.
  std::vector<size_t> leaves_below(const std::string& path) const {
    std::vector<size_t> found;
    for (auto at = by_path_.lower_bound(path); at != by_path_.end() && at->first.starts_with(path); ++at)
      found.push_back(at->second);
    std::ranges::sort(found);
    return found;
  }

  static std::string name_below(const std::string& path, const std::string& outer) {
    if (!path.starts_with(outer) || path.size() <= outer.size() + 1) return "";
    if (outer.empty()) return path;
    return path[outer.size()] == '.' ? path.substr(outer.size() + 1) : "";
  }

  const Resolved& resolved_;
  std::vector<Leaf> leaves_;
  std::map<std::string_view, size_t> by_path_; // of leaves_
};

class Summary {
 public:
  Summary(const Resolved& resolved, int width)
      : resolved_(resolved), plan_(resolved.plan), json_(plan_json(plan_)), values_(resolved),
        width_(static_cast<size_t>(std::clamp(width, 60, 120))) {}

  std::string text(const std::vector<std::string>& images) {
    out_ = fmt::format("{}  plan {}  {}\n\n", styled(plan_.name, Style::bold), resolved_.hash.substr(0, 12),
                       styled(resolved_.recipe, Style::dim));
    run(images);
    for (const auto& stage : plan_.stages) describe(stage);
    end();
    return std::move(out_);
  }

 private:
  static constexpr size_t label_columns = 16; // with two spaces before a label and two after the longest

  // A label and its comma-separated parts, wrapped to the width.
  void line(const std::string& label, const std::vector<std::string>& parts) {
    if (parts.empty()) return;
    std::string row = "  " + styled(padded(label, label_columns - 2), Style::cyan);
    size_t column = label_columns;
    for (size_t i = 0; i < parts.size(); ++i) {
      std::string part = parts[i] + (i + 1 < parts.size() ? "," : "");
      if (column > label_columns && column + 1 + display_width(part) > width_) {
        out_ += row + '\n';
        row = std::string(label_columns, ' ');
        column = label_columns;
      }
      row += (column > label_columns ? " " : "") + part;
      column += (column > label_columns ? 1 : 0) + display_width(part);
    }
    out_ += row + '\n';
  }

  void run(const std::vector<std::string>& images) {
    line("run", values_.below("", {"precision", "seed"}, nested_names()));
    line("model", tower("vision", "model.vision", json_["model"]["vision"]));
    line("", tower("decoder", "model.decoder", json_["model"]["decoder"]));
    for (size_t i = 1; i < plan_.model.decoder_count(); ++i)
      line("", tower(plan::decoder_name(i), "model.decoders" + index_part(i), json_["model"]["decoders"][i - 1]));
    for (const plan::Lora& lora : plan_.model.adapters.value_or(std::vector<plan::Lora>{}))
      line("adapters", adapter_sizes(lora));
    line("connector", values_.below("model.connector", {"query_dim", "visual_scale"}));
    line("images", images);
    for (const auto& [name, patterns] : plan_.model.groups)
      line("group", {fmt::format("{}: {}", name, join(patterns, ", "))});
    kernels();
    for (const char* section : {"speed", "loader", "checkpoint", "guard", "quantization"})
      line(section, values_.below(section));
  }

  static std::vector<std::string> adapter_sizes(const plan::Lora& lora) {
    std::vector<std::string> parts{fmt::format("{} of {}", lora.dora ? "DoRA" : "LoRA", join(lora.parts, ", ")),
                                   fmt::format("rank {}", lora.rank)};
    for (const auto& [module, rank] : lora.rank_pattern) parts.push_back(fmt::format("{} for {}", rank, module));
    const bool varies = !lora.alpha && !lora.rank_pattern.empty();
    parts.push_back(varies ? "alpha 2 x rank"
                           : fmt::format("alpha {:g}", lora.alpha.value_or(2 * static_cast<double>(lora.rank))));
    for (const auto& [module, alpha] : lora.alpha_pattern) parts.push_back(fmt::format("{:g} for {}", alpha, module));
    parts.push_back("on " + join(lora.targets, ", "));
    return parts;
  }

  std::set<std::string> nested_names() const {
    std::set<std::string> names{"name"};
    for (const auto& leaf : plan_leaves(plan_))
      if (leaf.path.find_first_of(".[") != std::string::npos) names.insert(leaf.path);
    return names;
  }

  std::vector<std::string> tower(const std::string& name, const std::string& path, const Json& json) const {
    if (json.is_string()) return {fmt::format("{} {}", name, value_text(json))};
    auto parts = values_.below(path, {}, {"kind"});
    parts.insert(parts.begin(), fmt::format("{} new {}", name, value_text(json["kind"])));
    return parts;
  }

  void kernels() {
    std::vector<std::string> parts;
    bool all_same = true;
    for (const auto& [kind, preference] : plan_.kernels.preferences) {
      all_same = all_same && preference == plan_.kernels.preferences.begin()->second;
      if (preference != plan::BackendPreferences{"auto"})
        parts.push_back(fmt::format("{}: {}", kind, join(preference, ", ")));
    }
    if (all_same)
      parts = {join(plan_.kernels.preferences.begin()->second, ", ")};
    else
      parts.push_back("all others auto");
    line("kernels", parts);
  }

  void describe(const plan::Stage& stage) {
    std::string path = "stages" + key_part(stage.name);
    out_ += fmt::format("\n{}  {}\n", styled(stage.name, Style::bold), heading(stage));
    data(stage.data);
    if (plan_.model.connector->training_mode_names().size() > 1) line("mode", {stage.mode});
    objective(stage, path);
    std::string optimizer = path + ".optimizer";
    std::vector<std::string> parts{value_text(json_of(stage)["optimizer"]["kind"]), values_.by_group(optimizer, "lr")};
    if (!plan::common(stage.optimizer).weight_decay.empty())
      parts.push_back(values_.by_group(optimizer, "weight_decay"));
    for (auto& part : values_.below(optimizer, {}, {"kind"}))
      if (!part.starts_with("lr.") && !part.starts_with("weight_decay.") && !part.starts_with("others.lr."))
        parts.push_back(part);
    if (std::holds_alternative<plan::Muon>(stage.optimizer))
      parts.push_back("others: adamw, " + values_.by_group(optimizer + ".others", "lr"));
    line("optimizer", parts);
    schedule(stage, path);
    if (!stage.freeze.empty()) line("freeze", stage.freeze);
    std::vector<std::string> packing = values_.below(path + ".packing");
    if (stage.packing.tokens.fill_memory) packing.push_back("chosen when training starts, as memory allows");
    line("packing", packing);
    line("recompute", values_.below(path + ".activation_checkpointing"));
    if (stage.quantization_aware) line("quantization", {"quantization-aware training"});
    evaluation(stage.evaluation);
    if (stage.control)
      line("control", {fmt::format("every {} steps", grouped(stage.control->every)), stage.control->run.defined});
  }

  const Json& json_of(const plan::Stage& stage) const {
    return json_["stages"][static_cast<size_t>(&stage - plan_.stages.data())];
  }

  static std::string heading(const plan::Stage& stage) {
    std::string from = stage.from == "model"                       ? "the model's weights"
                       : stage.from.find('/') == std::string::npos ? fmt::format("stage {}", stage.from)
                                                                   : stage.from;
    std::string samples = length_text(stage);
    if (stage.steps)
      return fmt::format("{} in {} steps of {}, from {}", samples, grouped(*stage.steps),
                         grouped(stage.batch.samples.value_or(0)), from);
    if (stage.batch.samples && !stage.batch.tokens && !stage.batch.frames)
      return fmt::format("{} in steps of {}, from {}", samples, grouped(*stage.batch.samples), from);
    std::vector<std::string> limits;
    if (stage.batch.samples) limits.push_back(fmt::format("{} samples", grouped(*stage.batch.samples)));
    if (stage.batch.tokens) limits.push_back(fmt::format("{} tokens", grouped(*stage.batch.tokens)));
    if (stage.batch.frames) limits.push_back(fmt::format("{} frames", grouped(*stage.batch.frames)));
    return fmt::format("{} in batches of at most {}, from {}", samples, join(limits, ", "), from);
  }

  void data(const plan::Mix& mix) {
    auto first = mix.shares(0), last = mix.shares(1);
    std::vector<std::string> shares;
    size_t columns = 0;
    for (size_t i = 0; i < mix.sources.size(); ++i) {
      shares.push_back(percent(first[i]));
      if (percent(last[i]) != shares[i]) shares[i] += " -> " + percent(last[i]);
      columns = std::max(columns, shares[i].size());
    }
    for (size_t i = 0; i < mix.sources.size(); ++i) {
      const auto& source = mix.sources[i];
      std::vector<std::string> parts = source.patterns();
      if (parts.size() > 4) {
        size_t more = parts.size() - 3;
        parts.resize(3);
        parts.push_back(fmt::format("and {} more", more));
      }
      parts.front() = fmt::format("{:>{}}  {}", shares[i], columns, parts.front());
      if (source.text_only()) parts.back() += "  (text only)";
      if (source.held_out) parts.back() += fmt::format("  ({} held out)", percent(*source.held_out));
      line(i == 0 ? "data" : "", parts);
    }
    std::vector<std::string> parts;
    if (mix.documents)
      parts = {fmt::format("{} documents", *mix.documents == plan::Documents::joined ? "joined" : "isolated"),
               fmt::format("in rows of {} tokens", grouped(mix.max_text_tokens))};
    else
      parts = {fmt::format("at most {} frames", grouped(mix.max_frames)),
               fmt::format("{} text tokens", grouped(mix.max_text_tokens))};
    if (mix.replicate_image_frames > 1)
      parts.push_back(fmt::format("images repeated to {} frames", mix.replicate_image_frames));
    if (mix.overlong == plan::Overlong::drop) parts.emplace_back("longer texts dropped");
    if (mix.system != plan::Mix{}.system) parts.push_back(mix.system.empty() ? "no system turn" : "custom system turn");
    if (mix.chat_template) parts.push_back(fmt::format("the decoder's chat template '{}'", *mix.chat_template));
    if (mix.mask_history) parts.emplace_back("last answers only");
    if (mix.boxes) parts.push_back(fmt::format("boxes as {}", plan::name_of(*mix.boxes)));
    if (mix.decoders)
      for (const auto& [name, texts] : *mix.decoders) parts.push_back("texts of its own for " + name);
    if (mix.prompts != plan::Mix::default_prompts()) parts.emplace_back("custom prompts");
    if (mix.preprocessed) parts.push_back("preprocessed in " + *mix.preprocessed);
    line("", parts);
  }

  void objective(const plan::Stage& stage, const std::string& path) {
    const Json& terms = json_of(stage)["objective"];
    for (size_t i = 0; i < terms.size(); ++i) {
      std::set<std::string> always{"on", "beta", "teacher", "answers", "max_new_tokens", "reward", "kl"};
      if (stage.objective[i]->embeds()) always.insert("temperature");
      auto parts = values_.below(path + ".objective" + index_part(i + 1), always, {"kind"});
      std::string kind = value_text(terms[i]["kind"]);
      parts.insert(parts.begin(), i == 0 ? kind : "+ " + kind);
      const plan::Term& term = stage.objective[i];
      if (term->embeds())
        parts.push_back(stage.packing.segments ? fmt::format("negatives from the samples of a pack, at most {}",
                                                             grouped(*stage.packing.segments))
                                               : "negatives from the samples of a pack");
      else if (term->needs_pairs() && term->reference() == plan::ObjectiveTerm::Reference::none)
        parts.emplace_back("no reference model");
      line(i == 0 ? "objective" : "", parts);
    }
  }

  void schedule(const plan::Stage& stage, const std::string& path) {
    const Json& json = json_of(stage)["schedule"];
    if (!json.is_object()) return line("schedule", {value_text(json)});
    std::vector<std::string> parts{value_text(json["kind"])};
    for (auto& part : values_.below(path + ".schedule", {"to", "to_share"}, {"kind", "warmup"})) {
      if (part.starts_with("to_share "))
        parts[0] += fmt::format(" to {}", percent(json["to_share"].get<double>()));
      else
        parts[0] += " " + part;
    }
    double warmup = plan::warmup(stage.schedule);
    if (warmup > 0 && stage.warmup_steps)
      parts.push_back(fmt::format("warm-up {} steps ({})", grouped(*stage.warmup_steps), percent(warmup)));
    else if (warmup > 0)
      parts.push_back("warm-up " + percent(warmup));
    line("schedule", parts);
  }

  void evaluation(const plan::Evaluation& evaluation) {
    bool first = true;
    for (const auto& set : evaluation.sets) {
      std::vector<std::string> parts{fmt::format("{}: {}", set.name, plan::name_of(set.measure))};
      if (set.samples > 0) parts.push_back(fmt::format("{} samples", grouped(set.samples)));
      if (set.data.mask_history) parts.emplace_back("last answers only");
      for (const auto& source : set.data.sources)
        for (const auto& shards : source.patterns())
          parts.push_back(source.held_out ? fmt::format("{} of {}", percent(*source.held_out), shards) : shards);
      if (plan_.model.connector->mode_names().size() > 1)
        parts.push_back(set.modes.size() == 1 ? "mode " + set.modes.front()
                                              : fmt::format("modes ({})", join(set.modes, ", ")));
      std::string when =
          evaluation.every > 0 ? fmt::format("every {} steps and at the end", grouped(evaluation.every)) : "at the end";
      if (first) parts.push_back(when);
      line(first ? "evaluation" : "", parts);
      first = false;
    }
  }

  void end() {
    auto changed = values_.command_line();
    if (!changed.empty()) out_ += '\n';
    line("changed by", changed);
    auto [set, filled] = values_.counts();
    out_ += styled(
        fmt::format("\n{} values set, {} defaults; --all shows each value and where it was written\n", set, filled),
        Style::dim);
  }

  const Resolved& resolved_;
  const plan::Plan& plan_;
  Json json_; // of the plan
  Values values_;
  size_t width_;
  std::string out_;
};

} // namespace

std::string summary_text(const Resolved& resolved, int width, const std::vector<std::string>& images) {
  return Summary(resolved, width).text(images);
}

} // namespace fvlm::recipe
