#include "recipe/plan.h"

#include <algorithm>
#include <cmath>

namespace fvlm::plan {

std::string Model::tokenizer_folder() const {
  if (const auto* folder = std::get_if<std::string>(&decoder)) return *folder;
  if (const auto* fresh = std::get_if<GhostVis>(&decoder)) return fresh->tokenizer;
  return std::get<Llama>(decoder).tokenizer;
}

const FreshVision* Model::fresh_vision() const {
  return std::visit(
      [](const auto& tower) -> const FreshVision* {
        if constexpr (std::is_convertible_v<decltype(&tower), const FreshVision*>)
          return &tower;
        else
          return nullptr;
      },
      vision);
}

std::optional<int64_t> Model::decoder_layers() const {
  if (const auto* llama = std::get_if<Llama>(&decoder)) return llama->layers;
  if (const auto* ghostvis = std::get_if<GhostVis>(&decoder)) return ghostvis->depth;
  return {};
}

std::optional<int64_t> Model::decoder_positions() const {
  if (const auto* llama = std::get_if<Llama>(&decoder)) return llama->max_positions;
  if (const auto* ghostvis = std::get_if<GhostVis>(&decoder)) return ghostvis->max_positions;
  return {};
}

Adam AdamByGroup::of(const std::string& group) const {
  if (!groups || !groups->contains(group)) return *this;
  const Own& own = groups->at(group);
  return {own.betas.value_or(betas), own.eps.value_or(eps)};
}

bool Muon::updates(const std::string& group) const {
  return !groups || std::find(groups->begin(), groups->end(), group) != groups->end();
}

double Muon::momentum_at(int64_t step) const {
  if (!momentum_warmup || step >= momentum_warmup->steps) return momentum;
  const double share = static_cast<double>(step) / static_cast<double>(momentum_warmup->steps);
  return momentum_warmup->from + (momentum - momentum_warmup->from) * share;
}

const char* name_of(LlamaFamily family) {
  constexpr const char* names[] = {"llama", "qwen2", "qwen3"};
  static_assert(std::size(names) == static_cast<size_t>(LlamaFamily::qwen3) + 1);
  return names[static_cast<size_t>(family)];
}

const char* name_of(Measure measure) {
  constexpr const char* names[] = {"loss", "choice", "preference", "answer", "bits_per_byte", "iou", "retrieval"};
  static_assert(std::size(names) == static_cast<size_t>(Measure::retrieval) + 1);
  return names[static_cast<size_t>(measure)];
}

double Curve::at(double progress) const {
  if (points.size() == 1) return points[0];
  double position = std::clamp(progress, 0.0, 1.0) * static_cast<double>(points.size() - 1);
  size_t left = std::min(static_cast<size_t>(position), points.size() - 2);
  double weight = position - static_cast<double>(left);
  return points[left] + (points[left + 1] - points[left]) * weight;
}

std::vector<double> Mix::shares(double progress) const {
  std::vector<double> shares;
  double of_frames = 0, of_text = 0;
  for (const Source& source : sources) {
    shares.push_back(source.weight.at(progress));
    (source.text_only() ? of_text : of_frames) += shares.back();
  }
  for (size_t i = 0; i < shares.size(); ++i) {
    bool is_text = sources[i].text_only();
    double part = !text_ratio ? 1 : is_text ? *text_ratio : 1 - *text_ratio;
    double sum = !text_ratio ? of_frames + of_text : is_text ? of_text : of_frames;
    shares[i] = sum > 0 ? part * shares[i] / sum : 0;
  }
  return shares;
}

// The encoder reads one source for all decoders.
Mix Mix::for_decoder(size_t index) const {
  Mix mix = *this;
  mix.decoders.reset();
  if (!decoders) return mix;
  const auto own = decoders->find(decoder_name(index));
  if (own == decoders->end()) return mix;
  const DecoderTexts& texts = own->second;
  mix.system = texts.system.value_or(system);
  if (texts.chat_template) mix.chat_template = texts.chat_template;
  if (texts.teacher_prompt) mix.teacher_prompt = texts.teacher_prompt;
  if (texts.questions) {
    mix.questions = texts.questions;
    mix.questions->source = questions.value_or(QuestionForm()).source;
  }
  return mix;
}

bool Mix::has_frames() const {
  return std::ranges::any_of(sources, [](const Source& source) { return !source.text_only(); });
}

std::map<std::string, std::string> Mix::default_prompts() {
  return {
      {"openvid", "Write a brief caption for this video."},
      {"webvid", "What would be the WebVid caption for this video?"},
      {"vript", "Provide a detailed narration of what happens in this video."},
      {"sharegpt4video", "Describe what happens in this video in detail."},
      {"default", "Describe this."},
  };
}

const OptimizerCommon& common(const Optimizer& optimizer) {
  return std::visit([](const auto& any) -> const OptimizerCommon& { return any; }, optimizer);
}

OptimizerCommon& common(Optimizer& optimizer) {
  return std::visit([](auto& any) -> OptimizerCommon& { return any; }, optimizer);
}

double warmup(const Schedule& schedule) {
  return std::visit(
      [](const auto& any) {
        if constexpr (requires { any.warmup; })
          return any.warmup;
        else
          return 0.0;
      },
      schedule);
}

bool Recompute::covers(int64_t layer) const {
  if (!layers.empty()) return std::ranges::find(layers, layer) != layers.end();
  return every > 0 && layer % every == 0;
}

LabelSelection LabelTerm::labels() const {
  LabelSelection selection{on, {}, position_weights};
  if (first) selection.first = std::lround(*std::ranges::max_element(first->points));
  return selection;
}

LabelSelection LabelTerm::labels_at(double progress) const {
  LabelSelection selection{on, {}, position_weights};
  if (first) selection.first = std::lround(first->at(progress));
  return selection;
}

const ObjectiveTerm* Stage::needs_pairs() const {
  for (const Term& term : objective)
    if (term->needs_pairs()) return &*term;
  return nullptr;
}

const ObjectiveTerm* Stage::needs_judgements() const {
  for (const Term& term : objective)
    if (term->needs_judgements()) return &*term;
  return nullptr;
}

const ObjectiveTerm* Stage::embeds() const {
  for (const Term& term : objective)
    if (term->embeds()) return &*term;
  return nullptr;
}

const Rollouts* Stage::rollouts() const {
  for (const Term& term : objective)
    if (const Rollouts* rollouts = term->rollouts()) return rollouts;
  return nullptr;
}

int64_t Stage::texts_per_sample() const {
  if (embeds()) return 2 + data.negatives.value_or(1);
  const Rollouts* of_model = rollouts();
  return of_model ? of_model->answers : needs_pairs() ? 2 : 1;
}

bool Stage::uses(ObjectiveTerm::Reference reference) const {
  return std::ranges::any_of(objective, [&](const Term& term) { return term->reference() == reference; });
}

bool Stage::reads_teacher_prompt() const {
  return std::ranges::any_of(objective, [](const Term& term) { return term->reads_teacher_prompt(); });
}

bool Stage::packs_teacher_texts() const {
  return std::ranges::any_of(objective,
                             [](const Term& term) { return term->reads_teacher_prompt() && !term->caches_teacher(); });
}

bool Stage::caches_teacher() const {
  return std::ranges::any_of(objective, [](const Term& term) { return term->caches_teacher(); });
}

Stage::SampleSize Stage::largest_sample(int64_t rows_per_frame) const {
  const bool has_frames = rows_per_frame > 0 && data.has_frames();
  const int64_t frames = has_frames ? std::max(data.max_frames, data.replicate_image_frames) : 0;
  const int64_t longest = frames * rows_per_frame + data.max_text_tokens;
  const int64_t of_teacher = packs_teacher_texts() ? data.max_text_tokens : 0;
  return {(embeds() ? texts_per_sample() : 1) * frames, texts_per_sample() * (longest + of_teacher), longest, frames};
}

bool Quarantine::exceeded_by(int64_t broken, int64_t read) const {
  constexpr int64_t min_read = 50;
  constexpr double min_share = 0.1;
  const double found = static_cast<double>(broken), all = static_cast<double>(read);
  return (broken > count && found > share * all) || (read >= min_read && found > std::max(share, min_share) * all);
}

const std::vector<KernelKind>& kernel_kinds() {
  static const std::vector<KernelKind> kinds = {
      {"attention", "Packed self-attention and cross-attention."},
      {"loss", "Output head with cross-entropy."},
      {"optimizer", "Optimizer step."},
      {"packer", "Packing of samples."},
      {"quantizer", "Quantization of weights."},
      {"video", "Decoding of video files."},
      {"linear", "Matrix products, with bias and GELU."},
      {"rmsnorm", "RMSNorm, fused with the residual addition."},
      {"layernorm", "LayerNorm."},
      {"rope", "Rotary position embedding."},
      {"swiglu", "The decoder's gated MLP."},
      {"bias_gelu", "Bias and GELU of the vision tower's MLP."},
      {"layerscale_residual", "LayerScale, fused with the residual addition."},
      {"scaled_rows", "LayerScale folded into the preceding weights."},
      {"short_convolution", "Qwen3.5's convolution over the last few rows.", true},
      {"delta_rule", "Qwen3.5's gated delta rule, in layers without attention.", true},
      {"experts", "Mixtures of experts of few rows, in answers.", true},
  };
  return kinds;
}

std::map<std::string, BackendPreferences, std::less<>> Kernels::all_auto() {
  std::map<std::string, BackendPreferences, std::less<>> preferences;
  for (const auto& kind : kernel_kinds()) preferences.emplace(kind.name, BackendPreferences{"auto"});
  return preferences;
}

const BackendPreferences& Kernels::operator[](std::string_view kind) const {
  return preferences.find(kind)->second;
}

std::vector<std::string> parameter_groups(const Model& model) {
  std::vector<std::string> groups = {"connector", "vision"};
  for (size_t i = 0; i < model.decoder_count(); ++i) groups.push_back(decoder_name(i));
  for (const auto& [name, patterns] : model.groups) groups.push_back(name);
  return groups;
}

} // namespace fvlm::plan
