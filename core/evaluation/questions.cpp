#include "evaluation/questions.h"

#include "base/error.h"
#include "base/glob.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/path_hint.h"
#include "base/text.h"
#include "data/media/endings.h"
#include "data/samples/parts.h"
#include "data/samples/sample_content.h"
#include "data/video_text.h"
#include "data/visual_marks.h"
#include "feed/packer.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::evaluation {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool is_media(const fs::path& path) {
  const std::string ending = path.extension().string();
  return !ending.empty() && (is_image(ending.substr(1)) || is_video(ending.substr(1)));
}

std::string category_of(const Entry& entry, const std::string& key) {
  const json* found = value_at(entry.object, key);
  if (!found) broken(fmt::format("there is no '{}' to tell it by", key));
  return found->is_string() ? found->get<std::string>() : found->dump();
}

std::vector<std::string> files_of(const std::vector<std::string>& patterns) {
  std::vector<std::string> files;
  for (const std::string& pattern : patterns) {
    const Matches found = match_files(pattern);
    if (!found.nothing.empty())
      throw Error(ErrorKind::data, "no file matches").at(found.nothing.front()).advise(with_start_of(pattern));
    files.insert(files.end(), found.files.begin(), found.files.end());
  }
  return files;
}

// Some of the questions, as a source of samples.
class QuestionSource final : public SampleSource {
 public:
  QuestionSource(std::shared_ptr<const Questions> questions, std::vector<Questions::Place> places)
      : questions_(std::move(questions)), places_(std::move(places)) {}

  std::vector<int64_t> sizes() const override { return {std::ssize(places_)}; }
  int64_t frame_elements() const override { return questions_->frame_elements(); }
  Sample measure(const DrawnSample& drawn) const override { return questions_->measure(at(drawn)); }
  void decode(const DrawnSample& drawn, const Sample& sample, std::span<float> frames) const override {
    if (sample.frames > 0) questions_->decode(at(drawn), frames);
  }
  std::string place(const DrawnSample& drawn) const override { return questions_->file(at(drawn)); }
  std::string key(const DrawnSample& drawn) const override { return questions_->place_in_file(at(drawn)); }

 private:
  const Questions::Place& at(const DrawnSample& drawn) const { return places_.at(static_cast<size_t>(drawn.sample)); }
  std::shared_ptr<const Questions> questions_;
  std::vector<Questions::Place> places_;
};

// Those after the first, which the set itself names.
void name_broken(const std::vector<SkippedSample>& skipped) {
  constexpr size_t most = 20;
  for (size_t i = 1; i < std::min(skipped.size(), most); ++i)
    log_warning("{}, {}: {}", skipped[i].place, skipped[i].key, skipped[i].reason);
}

} // namespace

const std::multimap<std::string, fs::path>& MediaFolder::below() const {
  std::call_once(listed_, [&] {
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      const fs::path& path = entry.path();
      below_.emplace(path.filename().string(), path);
      if (is_media(path)) below_.emplace(path.stem().string(), path);
    }
  });
  return below_;
}

fs::path MediaFolder::find(const std::string& name) const {
  if (folder_.empty())
    throw Error(ErrorKind::data, "it is about '{}', and no media folder is given", name)
        .advise("name the folder with --media");
  const fs::path relative = fs::path(name).lexically_normal();
  if (relative.is_absolute() || relative.string().starts_with(".."))
    throw Error(ErrorKind::data, "'{}' is not below the media folder", name);
  if (fs::exists(folder_ / relative)) return folder_ / relative;
  std::vector<fs::path> found;
  const auto [first, last] = below().equal_range(relative.filename().string());
  for (auto at = first; at != last; ++at) {
    const fs::path parent = at->second.lexically_relative(folder_).parent_path();
    const std::string wanted = relative.parent_path().string();
    if (wanted.empty() || parent == wanted || parent.string().ends_with("/" + wanted)) found.push_back(at->second);
  }
  if (found.size() == 1) return found.front();
  if (found.empty())
    throw Error(ErrorKind::data, "there is no '{}' here, nor in a folder below", name).at(folder_.string());
  throw Error(ErrorKind::data, "{} files are called '{}', {} among them", found.size(), name, found.front().string())
      .at(folder_.string())
      .advise("name the folder that has just the right one");
}

Questions::Questions(QuestionsRequest request, std::shared_ptr<const Tokenizer> tokenizer,
                     std::optional<VideoDecoder> decoder)
    : request_(std::move(request)), form_(form_named(request_.form)), tokenizer_(std::move(tokenizer)),
      chat_(*tokenizer_, request_.visual_rows, request_.chat_template), decoder_(std::move(decoder)),
      folder_(request_.media) {
  mix_.system = request_.system;
  request_.media_options.video = decoder_ ? &*decoder_ : nullptr;
  if (!request_.media.empty() && !fs::is_directory(request_.media))
    throw Error(ErrorKind::data, "there is no such media folder").at(request_.media.string());
  for (const std::string& file : files_of(request_.files)) files_.emplace_back(file, request_.fields);
  list_entries();
}

void Questions::list_entries() {
  std::vector<Place> places;
  for (size_t file = 0; file < files_.size(); ++file)
    for (int64_t entry = 0; entry < files_[file].size(); ++entry) places.push_back({file, entry});
  std::vector<Kind> kinds(places.size());
  std::mutex reporting;
  int64_t done = 0;
  in_parallel(std::ssize(places), threads_or_cores(0), [&](int64_t i) {
    kinds[static_cast<size_t>(i)] = kind_of(places[static_cast<size_t>(i)]);
    const std::lock_guard lock(reporting);
    if (request_.progress) request_.progress(++done, std::ssize(places));
  });
  const bool has_options = std::ranges::find(kinds, Kind::with_options) != kinds.end();
  for (size_t i = 0; i < places.size(); ++i) {
    if (kinds[i] == Kind::other_split) continue;
    const bool is_first = kinds[i] == Kind::with_options || (kinds[i] == Kind::broken && has_options);
    (is_first ? with_options_ : without_options_).push_back(places[i]);
  }
}

Questions::Kind Questions::kind_of(const Place& place) const {
  try {
    const Entry entry = files_[place.file].entry(place.entry);
    const json* split = value_at(entry.object, "split");
    if (!request_.split.empty() && split && *split != request_.split) return Kind::other_split;
    return form_.read(entry).sample.contains("choices") ? Kind::with_options : Kind::without_options;
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) { // whoever measures it is told
    return Kind::broken;
  }
}

Questions::ReadEntry Questions::read(const Place& place) const {
  const Entry entry = files_[place.file].entry(place.entry);
  try {
    Question question = form_.read(entry);
    if (!request_.category.empty()) question.sample["source"] = category_of(entry, request_.category);
    return {entry.id, std::move(question)};
  } catch (const ReadError&) {
    throw;
  } catch (const Error& error) {
    throw Error(ErrorKind::data, error.what())
        .advise(error.advice().empty() ? fmt::format("the form {}: {}", form_.name, form_.summary) : error.advice());
  }
}

int64_t Questions::frame_elements() const {
  return 3 * request_.media_options.image_size * request_.media_options.image_size;
}

MediaFile Questions::media_of(Question question) const {
  const bool is_one_file = question.media.size() == 1 && question.media.front().content.empty();
  if (is_one_file) return {folder_.find(question.media.front().path.string()), request_.media_options, question.span};
  for (Picture& picture : question.media)
    if (picture.content.empty()) picture.path = folder_.find(picture.path.string());
  return {std::move(question.media), request_.media_options};
}

Sample Questions::measure(const Place& place) const {
  ReadEntry entry = read(place);
  const auto images = std::ssize(entry.question.media);
  const FramePreparation preparation = request_.media_options.preparation();
  SampleContent parsed = parse_sample_content(Parts(entry.question.sample, {}), {}, {}, mix_, request_.visual_rows);
  Sample sample{.key = entry.id,
                .source = parsed.source,
                .rows_per_frame = request_.visual_rows.per_frame,
                .correct_choice = parsed.correct_choice,
                .answers = parsed.answers};
  bool is_video = false;
  std::string words; // around its frames
  if (images > 0) {
    const MediaFile media = media_of(std::move(entry.question));
    sample.frames = media.frames();
    sample.copies = media.copies();
    sample.media.tiles = media.tiles();
    sample.media.times = media.times();
    is_video = images == 1 && (!media.times().empty() || (media.tiles().empty() && media.frames() > media.copies()));
    if (!media.times().empty() && preparation.has_video_text()) words = video_text(media.times(), media.seconds());
  }
  std::string marks(is_video ? video_mark : "");
  for (int64_t i = 0; i < images && !is_video; ++i) marks += image_mark;
  for (Conversation& conversation : parsed.conversations) {
    if (request_.visual_rows.in_place && images > 0) mention_frames(conversation.turns, marks);
    if (!words.empty()) write_video(conversation.turns, words);
    ChatTokens tokens = chat_.encode(conversation.turns, conversation.system, conversation.tools.get());
    sample.texts.push_back({std::move(tokens.ids), std::move(tokens.answer_mask)});
  }
  MarkedFrames frames{sample.frames, sample.rows_per_frame, !is_video && images < 2, {}, {}};
  if (preparation.has_tile_text()) add_tile_texts(frames, *tokenizer_, preparation.tile_form(), sample.media.tiles);
  if (request_.visual_rows.in_place)
    for (SampleText& text : sample.texts) text.placeholders = expand_marks(text.ids, text.answer_mask, frames);
  for (const SampleText& text : sample.texts)
    if (const int64_t rows = sample.rows(text); rows > request_.positions)
      throw Error(ErrorKind::data, "it takes {} rows, {} of them tokens of text, and the decoder has {} positions",
                  grouped(rows), grouped(text.tokens()), grouped(request_.positions))
          .advise("--frames takes fewer frames of a video, and --max-pixels or --image-size smaller images");
  return sample;
}

void Questions::decode(const Place& place, std::span<float> frames) const {
  media_of(read(place).question).decode(frames);
}

std::vector<std::unique_ptr<SampleSet>> open_questions(const plan::EvaluationSet& set, const QuestionsRequest& request,
                                                       std::shared_ptr<const Tokenizer> tokenizer, Registry& registry) {
  const auto questions = std::make_shared<const Questions>(
      request, tokenizer, request.media.empty() ? std::nullopt : choose_video_decoder(registry, {}));
  std::vector<std::unique_ptr<SampleSet>> sets;
  const auto add = [&](std::vector<Questions::Place> places, plan::Measure measure) {
    plan::EvaluationSet settings = set;
    settings.measure = measure;
    settings.data.chat_template = request.chat_template;
    if (!sets.empty()) settings.name += "-open";
    OpenedSource source;
    source.samples = std::make_shared<const QuestionSource>(questions, std::move(places));
    source.tokenizer = tokenizer;
    source.image_size = request.media_options.image_size;
    source.processor = request.media_options.processor;
    source.mix.sources.resize(1);
    source.source_names = {settings.name};
    source.headline = form_named(request.form).headline;
    source.packer = [&](const PackSize& capacity) { return feed::choose_packer(registry, {}, capacity); };
    sets.push_back(std::make_unique<SampleSet>(std::move(settings), std::move(source), default_pack));
    name_broken(sets.back()->skipped());
  };
  const auto &with = questions->with_options(), &without = questions->without_options();
  if (request.measure && *request.measure != plan::Measure::choice) {
    std::vector<Questions::Place> all = with;
    all.insert(all.end(), without.begin(), without.end());
    add(std::move(all), *request.measure);
    return sets;
  }
  if (request.measure && !without.empty())
    log_warning("{} without options {} left out of multiple choice", counted(std::ssize(without), "question"),
                without.size() == 1 ? "is" : "are");
  if (request.measure || !with.empty()) add(with, plan::Measure::choice);
  if (!request.measure && (!without.empty() || with.empty())) add(without, plan::Measure::answer);
  return sets;
}

} // namespace fvlm::evaluation
