#include "recipe/rules.h"

#include "base/text.h"
#include "recipe/names_stage.h"
#include "recipe/positions.h"
#include "recipe/schema/type.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fvlm::recipe {
namespace {

using namespace plan;

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::ranges::find(words, word) != words.end();
}

bool looks_like_path(const std::string& text) {
  return text.find('/') != std::string::npos || text.starts_with(".");
}

// Kinds of kernels that are selected by score only and cannot be timed.
constexpr const char* untimed_kinds[] = {"optimizer", "packer", "quantizer", "video"};

std::vector<std::string> trained_groups(const Plan& plan, const Stage& stage) {
  std::vector<std::string> groups = parameter_groups(plan.model);
  std::erase_if(groups, [&](const std::string& group) { return contains(stage.freeze, group); });
  return groups;
}

// Calls visit(part of the path, table, whether a trained group needs an entry) for each table by group of an optimizer.
template <class O, class Visit>
void each_group_table(O& optimizer, Visit&& visit) {
  auto* muon = std::get_if<Muon>(&optimizer);
  visit(".lr", common(optimizer).lr, [&](const std::string& group) { return !muon || muon->updates(group); });
  visit(".weight_decay", common(optimizer).weight_decay, [](const std::string&) { return false; });
  if (muon) visit(".others.lr", muon->others.lr, [](const std::string&) { return true; });
}

class Rules {
 public:
  Rules(Reader& reader, const Plan& plan) : reader_(reader), plan_(plan), groups_(parameter_groups(plan.model)) {}

  void check() {
    for (const Stage& stage : plan_.stages) {
      if (stage.name.empty()) continue; // the entry was not a stage
      std::string path = "stages" + key_part(stage.name);
      reader_.within(path, [&] {
        check_start(stage);
        check_teachers(stage);
        if (reader_.is_valid("model")) check_groups(stage), check_fresh_towers(stage);
        check_quantization(stage);
        if (reader_.is_valid("model")) check_connector(stage), check_decoders(stage);
        check_packing(stage);
        check_batch(stage);
        return true;
      });
      earlier_.push_back(stage.name);
    }
    check_best_by();
    check_adapters();
    check_gradients();
    check_fp8();
    check_positions();
    check_quantization_is_used();
    check_timed_kernels();
  }

 private:
  bool is_valid(std::string_view part) const { return reader_.is_valid(reader_.path() + std::string(part)); }

  void check_start(const Stage& stage) {
    if (stage.name == "model")
      reader_.report_at(".name", "a stage cannot be called 'model': the name is reserved for `from`");
    if (stage.from.empty() || stage.from == "model" || looks_like_path(stage.from)) return;
    if (contains(earlier_, stage.from)) return;
    bool later = std::ranges::any_of(plan_.stages, [&](const Stage& s) { return s.name == stage.from; });
    std::string what = later ? fmt::format("the stage '{}' comes after this one", stage.from)
                             : fmt::format("there is no earlier stage '{}'", stage.from);
    auto names = earlier_;
    names.emplace_back("model");
    auto near = nearest(stage.from, names);
    reader_.report_at(
        ".from", what,
        fmt::format("{} a folder is named with a '/', as in \"./{}\"",
                    near && !later ? fmt::format("did you mean '{}'?", *near) : "use an earlier stage or \"model\";",
                    stage.from));
  }

  // A stage by its name, as in `from`, or else a path.
  void check_teachers(const Stage& stage) {
    for (size_t i = 0; i < stage.objective.size(); ++i) {
      const std::string* teacher = stage.objective[i] ? stage.objective[i]->teacher() : nullptr;
      if (teacher && names_stage(plan_, *teacher) && !contains(earlier_, *teacher))
        reader_.report_at(".objective" + index_part(i + 1) + ".teacher",
                          fmt::format("the stage '{}' is not earlier than this one", *teacher),
                          fmt::format("use an earlier stage; a folder is named with a '/', as in \"./{}\"", *teacher));
    }
  }

  // What a checkpoint of adapters does not hold has to come from where the run says it does.
  void check_adapters() {
    if (!plan_.model.adapters) return;
    for (const Stage& stage : plan_.stages)
      if (stage.quantization_aware)
        reader_.report_at("stages" + key_part(stage.name) + ".quantization_aware",
                          "the weights below adapters are frozen, and quantization-aware training adapts them",
                          "leave it out, or train without adapters");
  }

  void check_groups(const Stage& stage) {
    for (size_t i = 0; i < stage.freeze.size(); ++i)
      known_group(".freeze" + index_part(i + 1), stage.freeze[i], groups_);
    auto trained = trained_groups(plan_, stage);
    if (trained.empty() && is_valid(".freeze"))
      reader_.report_at(".freeze", "every group is frozen, nothing is left to train");
    if (!is_valid(".optimizer")) return;
    auto keys = groups_;
    keys.push_back("default");
    each_group_table(stage.optimizer, [&](const char* part, const ByGroup& table, const auto& needs) {
      std::string at = std::string(".optimizer") + part;
      for (const auto& [group, rate] : table) known_group(at + key_part(group), group, keys);
      if (table.contains("default")) return;
      for (const auto& group : trained)
        if (needs(group) && !table.contains(group))
          reader_.report_at(at, fmt::format("the group '{}' has no learning rate", group),
                            fmt::format("add it (or `default`), or freeze = {{ \"{}\" }}", group));
    });
    if (const auto* adamw = std::get_if<AdamW>(&stage.optimizer)) check_adam_groups(".optimizer", *adamw);
    if (const auto* muon = std::get_if<Muon>(&stage.optimizer)) check_muon_groups(*muon);
    if (const auto* plugin = std::get_if<PluginOptimizer>(&stage.optimizer))
      for (const char* name : {"lr", "weight_decay"})
        if (plugin->options.contains(name))
          reader_.report_at(fmt::format(".optimizer.options.{}", name),
                            fmt::format("`{}` is not an option of the algorithm", name),
                            "write it outside of `options`: it may differ by parameter group");
  }

  void check_muon_groups(const Muon& muon) {
    if (muon.groups)
      for (size_t i = 0; i < muon.groups->size(); ++i)
        known_group(".optimizer.groups" + index_part(i + 1), (*muon.groups)[i], groups_);
    check_adam_groups(".optimizer.others", muon.others);
  }

  void check_adam_groups(const std::string& part, const AdamByGroup& adam) {
    if (adam.groups)
      for (const auto& [group, settings] : *adam.groups)
        known_group(part + ".groups" + key_part(group), group, groups_);
  }

  void known_group(const std::string& part, const std::string& group, const std::vector<std::string>& known) {
    if (!contains(known, group))
      reader_.report_at(part, fmt::format("there is no parameter group '{}'", group), advise_key(group, known));
  }

  void check_connector(const Stage& stage) {
    const ConnectorSettings& connector = *plan_.model.connector;
    const auto known = [&](const std::string& part, const char* what, const std::string& word,
                           const std::vector<std::string>& words) {
      if (word.empty() || contains(words, word)) return;
      reader_.report_at(part, fmt::format("the connector fvlm.{} has no {} '{}'", connector.name(), what, word),
                        words.empty() ? "it has none" : "use " + join_or(words));
    };
    known(".mode", "training mode", stage.mode, connector.training_mode_names());
    for (const EvaluationSet& set : stage.evaluation.sets)
      for (const std::string& mode : set.modes)
        known(".evaluation.sets" + key_part(set.name) + ".modes", "mode", mode, connector.mode_names());
    for (size_t i = 0; i < stage.objective.size(); ++i)
      if (stage.objective[i])
        known(".objective" + index_part(i + 1), "view", stage.objective[i]->view(), connector.views());
  }

  void check_decoders(const Stage& stage) {
    const auto of_mix = [&](const std::string& path, const Mix& mix) {
      std::vector<std::string> known;
      for (size_t i = 1; i < plan_.model.decoder_count(); ++i) known.push_back(decoder_name(i));
      if (mix.decoders)
        for (const auto& [name, texts] : *mix.decoders)
          if (!contains(known, name))
            reader_.report_at(
                path + ".decoders" + key_part(name), fmt::format("the model has no further decoder '{}'", name),
                known.empty() ? "add it to `decoders` of the model"
                              : fmt::format("use {}; what `decoder` reads is in the mix itself", join_or(known)));
      if (known.empty()) return;
      if (mix.preprocessed)
        reader_.report_at(path + ".preprocessed", "a preprocessed mix has the tokens of one decoder",
                          "remove it: with several decoders the shards are read");
      if (mix.documents)
        reader_.report_at(path + ".documents", "documents are rows of one decoder", "remove `decoders` of the model");
    };
    of_mix(".data", stage.data);
    for (const EvaluationSet& set : stage.evaluation.sets) {
      const std::string path = ".evaluation.sets" + key_part(set.name);
      of_mix(path + ".data", set.data);
      if (plan_.model.decoders && (set.measure == Measure::preference || set.measure == Measure::retrieval))
        reader_.report_at(path + ".measure", fmt::format("\"{}\" is measured of one decoder", name_of(set.measure)),
                          "use \"loss\" or \"answer\"");
    }
    if (!plan_.model.decoders) return;
    for (size_t i = 0; i < stage.objective.size(); ++i) {
      const Term& term = stage.objective[i];
      if (!term) continue;
      const std::string path = ".objective" + index_part(i + 1);
      if (term->needs_pairs() || term->rollouts())
        reader_.report_at(path, fmt::format("fvlm.{} is for models with one decoder", term->name()),
                          "remove the term, or `decoders` of the model");
      if (term->teacher())
        reader_.report_at(path + ".teacher", "one teacher cannot be compared with several decoders",
                          "use reads = \"teacher_prompt\" without `teacher`: each decoder is its own teacher");
      for (size_t decoder = 1; term->caches_teacher() && decoder < plan_.model.decoder_count(); ++decoder)
        if (!contains(stage.freeze, decoder_name(decoder)))
          reader_.report_at(
              path + ".cache_teacher",
              fmt::format("each decoder is its own teacher, and this stage trains {}", decoder_name(decoder)),
              fmt::format("add \"{}\" to `freeze`, or leave out cache_teacher", decoder_name(decoder)));
    }
  }

  void check_fresh_towers(const Stage& stage) {
    auto layers = [&](const char* part, const Recompute& recompute, int64_t count) {
      for (int64_t layer : recompute.layers)
        if (layer >= count)
          reader_.report_at(part,
                            fmt::format("layer {} is out of range: the tower has {}, counted from 0", layer, count));
    };
    if (auto* vision = plan_.model.fresh_vision())
      layers(".activation_checkpointing.vision", stage.activation_checkpointing.vision, vision->layers);
    if (auto* encoder = std::get_if<Bytes>(&plan_.model.vision))
      layers(".activation_checkpointing.vision", stage.activation_checkpointing.vision, encoder->layers);
    for (size_t i = 0; i < plan_.model.decoder_count(); ++i)
      if (const auto count = plan_.model.with_decoder(i).decoder_layers())
        layers(".activation_checkpointing.decoder", stage.activation_checkpointing.decoder, *count);
  }

  void check_positions() {
    if (!reader_.is_valid("model")) return;
    std::optional<int64_t> positions; // of the decoder with the fewest
    for (size_t i = 0; i < plan_.model.decoder_count(); ++i)
      if (const auto own = plan_.model.with_decoder(i).decoder_positions())
        positions = std::min(positions.value_or(*own), *own);
    const auto rows = plan_.model.connector->known_rows_per_frame();
    if (!positions || !rows) return; // who reads the encoder's config checks it
    for (const LongSequences& long_ones : find_long_sequences(plan_, *positions, *rows))
      if (reader_.is_valid(long_ones.mix))
        reader_.report_at(long_ones.mix + ".max_text_tokens", long_ones.what, long_sequences_advice);
  }

  // Where the rows of a frame depend on the encoder's config, they are at least one.
  void check_packing(const Stage& stage) {
    for (const char* part : {".packing", ".batch", ".data", ".objective"})
      if (!is_valid(part)) return;
    const int64_t rows =
        reader_.is_valid("model") ? plan_.model.connector->known_rows_per_frame().value_or(1) : int64_t{1};
    const Packing& packing = stage.packing;
    const Stage::SampleSize largest = stage.largest_sample(rows);
    const int64_t most_frames = largest.frames, most_tokens = largest.tokens;
    if (packing.frames && *packing.frames < most_frames)
      reader_.report_at(".packing.frames",
                        fmt::format("a pack of {} frames cannot hold a sample of {}", *packing.frames, most_frames),
                        "raise it, or lower data.max_frames");
    if (packing.tokens.count && *packing.tokens.count < most_tokens)
      reader_.report_at(
          ".packing.tokens",
          fmt::format("a pack of {} tokens cannot hold a sample of {} ({} x {} frames{} and {} text tokens{})",
                      *packing.tokens.count, most_tokens, stage.texts_per_sample(), largest.longest_video,
                      rows > 1 ? fmt::format(" of {} decoder rows each", rows) : "", stage.data.max_text_tokens,
                      stage.packs_teacher_texts() ? ", and as many of the teacher's" : ""),
          "raise it, or lower data.max_text_tokens or data.max_frames");
    if (stage.batch.frames && !stage.batch.samples && !stage.batch.tokens && !stage.data.has_frames())
      reader_.report_at(".batch", "its data have no frames, so that a limit of frames alone ends no batch",
                        "limit samples or tokens");
    if (stage.batch.frames && *stage.batch.frames < most_frames)
      reader_.report_at(".batch.frames", fmt::format("a batch of {} frames cannot hold a sample of {}",
                                                     *stage.batch.frames, most_frames));
    if (stage.batch.tokens && *stage.batch.tokens < most_tokens)
      reader_.report_at(".batch.tokens", fmt::format("a batch of {} tokens cannot hold a sample of {}",
                                                     *stage.batch.tokens, most_tokens));
  }

  void check_quantization(const Stage& stage) {
    if (stage.quantization_aware && !plan_.quantization && reader_.is_valid("quantization"))
      reader_.report_at(".quantization_aware", "the recipe has no `quantization`",
                        "add quantization = { scheme = \"int8\" } to the recipe");
  }

  void check_batch(const Stage& stage) {
    if (reader_.reads_plan_file) return; // it may come from an earlier version
    if (!stage.batch.samples || *stage.batch.samples <= stage.samples || !is_valid(".batch") || !is_valid(".samples"))
      return;
    reader_.report_at(".batch",
                      fmt::format("a batch of {} samples exceeds the {} samples of the stage",
                                  grouped(*stage.batch.samples), grouped(stage.samples)),
                      fmt::format("use batch = {}, or more samples", stage.samples));
  }

  // Plan files of earlier versions may have an unused quantization.
  void check_quantization_is_used() {
    if (!plan_.quantization || reader_.reads_plan_file || !reader_.is_valid("quantization") ||
        !reader_.is_valid("stages"))
      return;
    const auto& stages = plan_.stages;
    if (std::ranges::none_of(stages, &Stage::quantization_aware))
      reader_.report_at("quantization", "no stage is quantization_aware, so nothing would train for it",
                        "set quantization_aware = true in a stage, or remove it: `export --quantize` needs no recipe");
  }

  // A single "measure" for every kind applies to those that can be timed, so only explicit entries are mistakes.
  void check_timed_kernels() {
    const auto& preferences = plan_.kernels.preferences;
    if (reader_.reads_plan_file || !reader_.is_valid("kernels") || preferences.empty()) return;
    const BackendPreferences& first = preferences.begin()->second;
    if (std::ranges::all_of(preferences, [&](const auto& each) { return each.second == first; })) return;
    for (const char* kind : untimed_kinds)
      if (contains(preferences.at(kind), "measure"))
        reader_.report_at("kernels" + key_part(kind), fmt::format("'{}' cannot be timed", kind),
                          "use \"auto\" instead of \"measure\"");
  }

  void check_gradients() {
    if (plan_.gradients == Gradients::fp32 || !reader_.is_valid("precision")) return;
    if (plan_.precision != Precision::bf16 && plan_.precision != Precision::fp8)
      reader_.report_at("gradients", "bf16 gradients need precision = \"bf16\"", "remove `gradients`");
  }

  // Both change what the decoder's linears multiply.
  void check_fp8() {
    if (plan_.precision != Precision::fp8 || !reader_.is_valid("precision")) return;
    const auto refuse = [this](const std::string& what, const std::string& advice) {
      reader_.report_at("precision", "\"fp8\" " + what, advice);
    };
    if (plan_.quantization) refuse("together with quantization-aware training is not supported", "use \"bf16\"");
    for (const Lora& each : plan_.model.adapters.value_or(std::vector<Lora>{}))
      if (each.dora || each.dropout > 0)
        refuse("has no effect on weights with adapters of DoRA, or with dropout, which are multiplied in bf16",
               "use \"bf16\", or adapters without these");
  }

  void check_best_by() {
    if (!plan_.checkpoint.best_by || !reader_.is_valid("stages")) return;
    std::vector<std::string> names;
    for (const Stage& stage : plan_.stages)
      for (const auto& set : stage.evaluation.sets) names.push_back(set.name);
    if (!contains(names, *plan_.checkpoint.best_by))
      reader_.report_at("checkpoint.best_by",
                        fmt::format("no stage has an evaluation set '{}'", *plan_.checkpoint.best_by),
                        advise_key(*plan_.checkpoint.best_by, names));
  }

  Reader& reader_;
  const Plan& plan_;
  std::vector<std::string> groups_;
  std::vector<std::string> earlier_; // stages before the current one
};

// What the first stage starts from: the recipe's model, or the model directory that it comes from, as a path.
std::string start_of(const Model& model) {
  if (!model.directory) return "model";
  return looks_like_path(*model.directory) ? *model.directory : "./" + *model.directory;
}

} // namespace

void check_plan(Reader& reader, const Plan& plan) {
  if (reader.mistakes.full()) return; // mistakes beyond the limit are only counted and would be reported again here
  Rules(reader, plan).check();
}

void derive_frames(Plan& plan) {
  if (!plan.model.connector->reads_bytes()) return;
  const auto one_text = [](Mix& mix) { mix.max_frames = mix.replicate_image_frames = 1; };
  for (Stage& stage : plan.stages) {
    one_text(stage.data);
    for (EvaluationSet& set : stage.evaluation.sets) one_text(set.data);
  }
}

void derive(Reader& reader, Plan& plan) {
  if (auto* vision = plan.model.fresh_vision()) vision->mlp = vision->mlp.value_or(4 * vision->width);
  if (auto* bytes = std::get_if<Bytes>(&plan.model.vision)) bytes->mlp = bytes->mlp.value_or(4 * bytes->width);
  const auto fill = [](Decoder& any) {
    auto* decoder = std::get_if<Llama>(&any);
    if (!decoder) return;
    decoder->kv_heads = decoder->kv_heads.value_or(decoder->heads);
    decoder->mlp = decoder->mlp.value_or(4 * decoder->width);
  };
  fill(plan.model.decoder);
  if (plan.model.decoders)
    for (Decoder& decoder : *plan.model.decoders) fill(decoder);
  for (const char* kind : untimed_kinds) {
    auto& preferences = plan.kernels.preferences.at(kind);
    std::ranges::replace(preferences, std::string("measure"), std::string("auto"));
  }
  const std::string model = start_of(plan.model);
  std::string before = model;
  for (Stage& stage : plan.stages) {
    if (stage.from.empty()) stage.from = before;
    if (stage.from == "model") stage.from = model;
    if (stage.mode.empty()) stage.mode = plan.model.connector->training_mode_names().front();
    for (EvaluationSet& set : stage.evaluation.sets) {
      if (set.modes.empty()) set.modes = {plan.model.connector->mode_names().front()};
      for (Source& source : set.data.sources) source.side = Portion::Side::held_out;
    }
    before = stage.name;
    std::string optimizer = "stages" + key_part(stage.name) + ".optimizer";
    auto trained = trained_groups(plan, stage);
    each_group_table(stage.optimizer, [&](const char* part, ByGroup& table, const auto&) {
      ByGroup resolved;
      for (const auto& group : trained) {
        auto own = table.find(group), common = table.find("default");
        if (own == table.end() && common == table.end()) continue;
        resolved[group] = own != table.end() ? own->second : common->second;
        if (own == table.end())
          reader.inherit_origin(optimizer + part + key_part(group), optimizer + part + ".default");
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
