// Questions: the entries of benchmark files as samples of evaluation sets.
#pragma once
#include "data/chat.h"
#include "data/media/video.h"
#include "evaluation/forms/form.h"
#include "evaluation/question_file.h"
#include "evaluation/sample_set.h"
#include "plugin/registry.h"
#include "recipe/plan.h"

#include <deque>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::evaluation {

struct QuestionsRequest {
  std::vector<std::string> files; // and patterns of them: see QuestionFile
  std::string form;
  Parts::Fields fields;
  std::filesystem::path media; // folder of the media; empty: only questions with images in the files, or without
  std::string category;        // the entry's key by which results are grouped; empty: the form's own
  std::string split;           // only entries of this split, and those that name none; empty: all
  std::optional<plan::Measure> measure; // choice, answer or loss; empty: choice for questions with options, else answer
  std::string system = plan::Mix().system;
  std::optional<std::string> chat_template; // as in plan::Mix
  MediaOptions media_options;
  plan::VisualRows visual_rows;                            // of the model
  int64_t positions = std::numeric_limits<int64_t>::max(); // of its decoder
  std::function<void(int64_t done, int64_t all)> progress; // while entries are read for the first time
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

class Questions {
 public:
  // Looks at all entries of the files, and keeps none of them but of .json. Without a video `decoder`, videos are
  // refused. Throws Error(data) for a file that is none.
  Questions(QuestionsRequest request, std::shared_ptr<const Tokenizer> tokenizer, std::optional<VideoDecoder> decoder);

  // Where an entry is.
  struct Place {
    size_t file = 0;
    int64_t entry = 0;
  };
  // Of the split, in the order of the files. A broken entry is among those with options, unless there are none.
  const std::vector<Place>& with_options() const { return with_options_; }
  const std::vector<Place>& without_options() const { return without_options_; }

  // Throws Error(data) for an entry that is broken. [any thread]
  Sample measure(const Place& place) const;
  void decode(const Place& place, std::span<float> frames) const;
  int64_t frame_elements() const;
  std::string file(const Place& place) const { return files_[place.file].path().string(); }
  std::string place_in_file(const Place& place) const { return files_[place.file].place(place.entry); }

 private:
  struct ReadEntry {
    std::string id;
    Question question;
  };
  enum class Kind { other_split, broken, with_options, without_options };
  void list_entries();
  Kind kind_of(const Place& place) const;
  ReadEntry read(const Place& place) const;
  MediaFile media_of(Question question) const;

  QuestionsRequest request_;
  const Form& form_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  ChatTemplate chat_;
  std::optional<VideoDecoder> decoder_;
  plan::Mix mix_; // settings of parse_sample_content()
  MediaFolder folder_;
  std::deque<QuestionFile> files_;
  std::vector<Place> with_options_, without_options_;
};

// The questions as a set, in packs of the usual size; as two where some have options and others have none, and no
// measure is requested: the second is NAME-open. `set` says all but its measure.
std::vector<std::unique_ptr<SampleSet>> open_questions(const plan::EvaluationSet& set, const QuestionsRequest& request,
                                                       std::shared_ptr<const Tokenizer> tokenizer, Registry& registry);

} // namespace fvlm::evaluation
