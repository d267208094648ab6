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
  std::filesystem::path media; // folder of the media; empty: only questions without media are supported
  std::string category;        // the entry's key by which accuracy is grouped; empty: the form's own
  std::string split;           // only entries of this split, and those that name none; empty: all
  std::string system = plan::Mix().system;
  std::optional<std::string> chat_template; // as in plan::Mix
  MediaOptions media_options;
  plan::VisualRows visual_rows; // of the model
};

// Finds the media files that entries name, in a folder and those below it.
class MediaFolder {
 public:
  explicit MediaFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}
  // Matches the name with or without the extension of a picture or video, in the folder or below. Throws Error(data) if
  // no file or more than one matches.
  std::filesystem::path find(const std::string& name) const;

 private:
  const std::multimap<std::string, std::filesystem::path>& below() const;
  std::filesystem::path folder_;
  mutable std::once_flag listed_;
  mutable std::multimap<std::string, std::filesystem::path> below_; // by file name, with and without extension
};

class Questions : public SampleSource {
 public:
  // Checks all entries of the files; media are opened when they are read. Throws Error(data) with file and entry.
  // Without a video `decoder`, videos are refused.
  Questions(QuestionsRequest request, std::shared_ptr<const Tokenizer> tokenizer, std::optional<VideoDecoder> decoder);

  std::vector<int64_t> sizes() const override { return {std::ssize(questions_)}; }
  int64_t frame_elements() const override;
  Sample measure(const DrawnSample& drawn) const override;
  void decode(const DrawnSample& drawn, const Sample& sample, std::span<float> frames) const override;
  std::string place(const DrawnSample& drawn) const override { return at(drawn).file; }
  std::string key(const DrawnSample& drawn) const override { return at(drawn).id; }

 private:
  struct LocatedQuestion {
    std::string file, id;
    Question question;
  };
  const LocatedQuestion& at(const DrawnSample& drawn) const { return questions_.at(static_cast<size_t>(drawn.sample)); }
  void add(const std::filesystem::path& file, const Form& form);
  bool is_of_split(const Entry& entry) const;
  MediaFile media_of(const LocatedQuestion& located) const;

  QuestionsRequest request_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  ChatTemplate chat_;
  std::optional<VideoDecoder> decoder_;
  plan::Mix mix_; // settings of parse_sample_content()
  MediaFolder folder_;
  std::vector<LocatedQuestion> questions_;
};

// The questions as a set, in packs of the usual size.
std::unique_ptr<SampleSet> open_questions(const plan::EvaluationSet& set, const QuestionsRequest& request,
                                          std::shared_ptr<const Tokenizer> tokenizer, Registry& registry);

} // namespace fvlm::evaluation
