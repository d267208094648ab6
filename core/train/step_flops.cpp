#include "train/step_flops.h"

#include "objective/labels.h"

#include <algorithm>
#include <cmath>

namespace fvlm::train {

StepFlops::StepFlops(const plan::Plan& plan, const plan::Stage& stage, const model::Model& policy,
                     const Optimization& optimization, const objective::FrozenModels& frozen)
    : plan_(plan), stage_(stage), policy_(policy) {
  trained_.resize(policy.decoders());
  for (const Group* group : optimization.trained())
    for (const ops::Parameter* parameter : group->parameters) {
      const std::string name = directory_name(parameter->name);
      if (policy.config().adapters.contains(name.substr(0, name.find('.')))) { // skinny products, which are not counted
        for (model::TrainedParts& trained : trained_) trained.adapters = true;
        continue;
      }
      for (size_t i = 0; i < trained_.size(); ++i) {
        model::TrainedParts& trained = trained_[i];
        trained.vision = trained.vision || name.starts_with("vision.");
        trained.decoder = trained.decoder || name.starts_with(plan::decoder_name(i) + ".");
        trained.connector = trained.connector || name.starts_with("connector.");
      }
    }
  if (frozen.reference) frozen_.push_back(frozen.reference.get());
  for (size_t term = 0; term < stage.objective.size(); ++term) {
    const auto teacher = frozen.teachers.find(term);
    const auto* own = teacher == frozen.teachers.end() ? nullptr : teacher->second.get();
    if (stage.objective[term]->caches_teacher())
      heads_.push_back(own ? own : &policy);
    else if (stage.objective[term]->reads_teacher_prompt())
      teachers_.push_back(own ? own : &policy);
    else if (own)
      frozen_.push_back(own);
  }
}

double StepFlops::of(std::span<const std::shared_ptr<const Sample>> samples, int64_t encoded_frames) const {
  double all = 0;
  for (size_t decoder = 0; decoder < policy_.decoders(); ++decoder) all += of_decoder(decoder, samples, encoded_frames);
  return all;
}

double StepFlops::of_decoder(size_t decoder, std::span<const std::shared_ptr<const Sample>> samples,
                             int64_t encoded_frames) const {
  model::Work work, of_teacher, of_head;
  work.encoded_frames = static_cast<double>(encoded_frames);
  for (const auto& of_all : samples) {
    const auto sample = for_decoder(of_all, decoder);
    std::vector<int64_t> texts;
    int64_t count = 0;
    for (const SampleText& text : sample->texts) {
      texts.push_back(text.tokens());
      const auto labels = objective::labels(text, stage_.objective);
      count += std::count(labels.begin(), labels.end(), true);
    }
    // Of the frames for each text, where texts do not share them.
    const size_t together = plan_.speed.shared_preference_frames ? texts.size() : 1;
    for (size_t first = 0; first < texts.size(); first += together) {
      work.add(sample->frames, sample->visual_rows(sample->texts[first]), std::span(texts).subspan(first, together));
      work.add(sample->grids());
    }
    work.labels += static_cast<double>(count);
    std::vector<int64_t> teacher_texts;
    for (const SampleText& text : sample->teacher_texts) teacher_texts.push_back(text.tokens());
    of_teacher.add(0, 0, teacher_texts);
    of_teacher.labels += static_cast<double>(count);
    of_head.labels += static_cast<double>(count);
  }
  const auto reads = static_cast<double>(objective::Objective(stage_.objective, stage_.mode).views()); // of the text
  work.rows *= reads;
  work.pairs *= reads;
  work.labels *= reads;
  const int64_t size = plan_.model.image_size;
  int64_t tokens = policy_.encoder().tokens_per_frame(size, size), bytes = 0, frames = 0;
  for (const auto& sample : samples) bytes += std::ssize(sample->bytes), frames += sample->frames;
  if (policy_.encoder().reads_bytes() && frames > 0) // of a text of mean length
    tokens = std::llround(static_cast<double>(bytes) / static_cast<double>(frames));
  double all = policy_.with_decoder(decoder).flops(tokens, work, trained_[decoder], stage_.mode);
  const auto add = [&](const std::vector<const model::Model*>& models, const model::Work& of) {
    for (const model::Model* model : models) all += model->with_decoder(decoder).flops(tokens, of, {}, stage_.mode);
  };
  add(frozen_, work);
  add(teachers_, of_teacher);
  add(heads_, of_head);
  return all;
}

} // namespace fvlm::train
