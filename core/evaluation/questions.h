// Questions: the entries of benchmark files as samples of an evaluation set.
#pragma once
#include "data/chat.h"
#include "data/media/video.h"
#include "data/stream/sample_source.h"
#include "evaluation/forms/form.h"
#include "evaluation/sample_set.h"
#include "plugin/registry.h"
#include "recipe/plan.h"

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::evaluation {

struct QuestionsRequest {
  std::vector<std::filesystem::path> files; // .json: a list, or an object by id; .jsonl: an entry a line
  std::string form;
  std::filesystem::path media; // the folder; empty: only questions without pictures can be asked
  std::string category;        // the key by which questions are told apart; empty: as the form has it
  std::string split;           // only entries that say so, where they say one; empty: all
  std::string system = plan::Mix().system;
  std::optional<std::string> chat_template; // as in plan::Mix
  MediaOptions media_options;
  plan::VisualRows visual_rows; // of the model
};

// Finds what entries name below a folder.
class MediaFolder {
 public:
  explicit MediaFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}
  // As it is named, or with the ending of a picture or a video, there or in a folder below. Throws Error(data) where
  // nothing or more than one thing is called so.
  std::filesystem::path find(const std::string& name) const;

 private:
  const std::multimap<std::string, std::filesystem::path>& below() const;
  std::filesystem::path folder_;
  mutable std::once_flag listed_;
  mutable std::multimap<std::string, std::filesystem::path> below_; // by name, with the ending and without
};

class Questions : public SampleSource {
 public:
  // All of the files' entries are checked, their media when they are asked for. Throws Error(data) with file and entry.
  // `decoder`: of videos; none: they are refused.
  Questions(QuestionsRequest request, std::shared_ptr<const Tokenizer> tokenizer, std::optional<VideoDecoder> decoder);

  std::vector<int64_t> sizes() const override { return {std::ssize(asked_)}; }
  int64_t frame_elements() const override;
  Sample measure(const DrawnSample& drawn) const override;
  void decode(const DrawnSample& drawn, const Sample& sample, std::span<float> frames) const override;
  std::string place(const DrawnSample& drawn) const override { return at(drawn).file; }
  std::string key(const DrawnSample& drawn) const override { return at(drawn).id; }

 private:
  struct Asked {
    std::string file, id;
    Question question;
  };
  const Asked& at(const DrawnSample& drawn) const { return asked_.at(static_cast<size_t>(drawn.sample)); }
  void add(const std::filesystem::path& file, const Form& form);
  bool is_of_split(const Entry& entry) const;
  MediaFile media_of(const Asked& asked) const;

  QuestionsRequest request_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  ChatTemplate chat_;
  std::optional<VideoDecoder> decoder_;
  plan::Mix mix_; // what parse_sample_content() goes by
  MediaFolder folder_;
  std::vector<Asked> asked_;
};

// The questions as a set, in packs of the usual size.
std::unique_ptr<SampleSet> open_questions(const plan::EvaluationSet& set, const QuestionsRequest& request,
                                          std::shared_ptr<const Tokenizer> tokenizer, Registry& registry);

} // namespace fvlm::evaluation
