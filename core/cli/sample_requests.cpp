#include "cli/sample_requests.h"

#include "base/error.h"
#include "cli/recipe_options.h"
#include "data/samples/error_context.h"
#include "data/samples/frames.h"
#include "data/samples/named_media.h"
#include "data/samples/objects.h"
#include "data/visual_marks.h"

#include <fmt/format.h>

#include <span>
#include <utility>

namespace fvlm::cli {
namespace {

constexpr const char* body_key = "body"; // of a request of OpenAI's batches

plan::Source source_of(const ParsedOptions& parsed) {
  plan::Source source;
  source.shards = parsed.values("data");
  source.root = parsed.value("root");
  source.fields = source_fields(parsed);
  return source;
}

plan::Mix mix_of(const ParsedOptions& parsed) {
  plan::Mix mix;
  if (const auto question = parsed.value("prompt")) mix.prompts = {{"default", *question}};
  return mix;
}

std::string file_of(const Shard& shard, const Member& member) {
  const std::vector<std::byte> bytes = read_image(shard, member);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A video, which is read where it lies.
serve::RequestVideo video_of(const std::shared_ptr<const Shard>& shard, const Member& member) {
  using File = std::pair<std::shared_ptr<const Shard>, std::unique_ptr<const RandomAccess>>;
  const auto file = std::make_shared<const File>(shard, shard->open(member));
  serve::RequestVideo video{.first = 0, .frames = 0};
  video.source = {file, file->second.get()};
  video.source_name = member.file.empty() ? fmt::format("{} {} {} {}{}", member.offset, member.size, member.row,
                                                        shard->path().string(), member.pointer)
                                          : member.file;
  return video;
}

// The settings of an answer are those of the command line for all samples.
void refuse_settings(const nlohmann::json& body) {
  for (const auto& [name, value] : body.items())
    if (name != "messages" && name != "tools" && name != "model" && !value.is_null())
      throw Error(ErrorKind::data, "its body has {}, and options of the command say it for all samples", name)
          .advise("take it out, or send the request to `serve`");
}

// The member of an image that cannot be read is no reason to answer without it.
void refuse_unread(const ShardSample& members) {
  if (const Member* const image = unread_image(members))
    throw Error(ErrorKind::data, "'{}' is an image of a form that is not read", image->name).advise(convert_images);
}

// Several pictures are a video where the question says so, or where the model reads videos as images.
void add_pictures(const Shard& shard, const FoundFrames& found, const AnsweringModel& model,
                  serve::ChatRequest& request) {
  const FramePreparation preparation = model.input.media.preparation();
  const bool is_video = !found.still && mentions_video(request.turns);
  const auto count = std::ssize(found.media.members);
  const bool may_be_many = found.still || (preparation.has_own_videos() && !is_video);
  const auto picks = evenly_spaced(count, may_be_many ? count : preparation.most_frames(model.input.media.max_frames));
  std::string marks;
  for (const int64_t pick : picks) {
    request.images.push_back(file_of(shard, found.media.members[static_cast<size_t>(pick)]));
    marks += image_mark;
  }
  if (is_video && preparation.has_own_videos()) {
    request.video = {.first = 0, .frames = picks.size()};
    if (picks.size() > 1)
      request.video->per_second = static_cast<double>(picks.size() - 1) / static_cast<double>(count - 1);
  }
  if (model.rows.in_place) mention_frames(request.turns, marks);
}

void add_media(const std::shared_ptr<const Shard>& shard, const ShardSample& members, const AnsweringModel& model,
               serve::ChatRequest& request) {
  const FoundFrames found = find_frames(members);
  switch (found.media.kind) {
  case Media::Kind::none:
    return refuse_unread(members);
  case Media::Kind::images:
    return add_pictures(*shard, found, model, request);
  case Media::Kind::video:
    request.images = {""};
    request.video = video_of(shard, found.media.members.front());
    if (model.rows.in_place) mention_frames(request.turns, video_mark);
    return;
  case Media::Kind::pixels:
    throw Error(ErrorKind::data, "its frames are an array of pixels, which training alone reads")
        .advise("name the images, or a video");
  }
}

void place_objects(const Shard& shard, const ShardSample& members, const InputSettings& input, PromptContent& content) {
  const FramePreparation preparation = input.media.preparation();
  std::vector<Conversation> talks{content.conversation};
  if (content.expected) talks[0].turns.push_back({"assistant", *content.expected});
  write_objects(*content.objects, input.boxes, boxed_images(shard, members, preparation), talks);
  if (content.expected) {
    content.expected = talks[0].turns.back().text;
    talks[0].turns.pop_back();
  }
  content.conversation = std::move(talks[0]);
}

} // namespace

Options& with_sample_options(Options& options) {
  return options
      .value("root", "DIR", "what paths in the files of --data are relative to; default: the folder of each file")
      .repeated_value("field", "PART=KEY",
                      "the key of a part of a sample of --data, as in a recipe's `fields` (repeatable)");
}

SampleRequests::SampleRequests(const ParsedOptions& parsed)
    : source_(source_of(parsed)), mix_(mix_of(parsed)), shards_(source_.shards, with_root({}, source_)) {}

SampleRequests::Opened SampleRequests::open(int64_t number) const {
  const SampleLocation place = shards_.locate(number);
  Opened sample;
  sample.shard = shards_.shard(place);
  sample.members = sample.shard->sample(place.sample);
  sample.key = shards_.shards() == 1 ? sample.members.key
                                     : fmt::format("{}: {}", sample.shard->path().string(), sample.members.key);
  try {
    with_sample_context(*sample.shard, sample.members.key, [&] {
      if (!sample.members.damage.empty()) broken(sample.members.damage);
      sample.json = sample.shard->json(sample.members).value_or(nlohmann::json::object());
    });
  } catch (const ReadError&) {
    throw;
  } catch (const Error& error) {
    sample.broken = error.text();
    return sample;
  }
  const auto id = sample.json.find("custom_id");
  if (id != sample.json.end() && id->is_string() && !id->get_ref<const std::string&>().empty())
    sample.key = id->get<std::string>();
  return sample;
}

SampleRequests::Request SampleRequests::request(const Opened& sample, const AnsweringModel& model) const {
  return with_sample_context(*sample.shard, sample.members.key, [&] { return asked(sample, model); });
}

SampleRequests::Request SampleRequests::asked(Opened sample, const AnsweringModel& model) const {
  const bool has_body = sample.json.contains(body_key) && sample.json[body_key].is_object();
  if (has_body) {
    sample.json = nlohmann::json(std::move(sample.json[body_key]));
    refuse_settings(sample.json);
  }
  if (sample.shard->names_media()) {
    const size_t own = sample.members.members.size();
    add_named_media(*sample.shard, Parts(sample.json, source_.fields), sample.members);
    for (Member& member : std::span(sample.members.members).subspan(own)) // pointers are into the whole line
      if (has_body && member.row >= 0) member.pointer = fmt::format("/{}{}", body_key, member.pointer);
  }
  plan::Mix mix = mix_;
  mix.system = model.input.system;
  const auto caption = caption_file_of(*sample.shard, sample.members);
  PromptContent content = parse_prompt_content(std::move(sample.json), caption, source_, mix, model.rows);
  if (content.objects) place_objects(*sample.shard, sample.members, model.input, content);
  Request asked;
  asked.expected = std::move(content.expected);
  asked.request.system = std::move(content.conversation.system);
  asked.request.turns = std::move(content.conversation.turns);
  if (const auto& tools = content.conversation.tools)
    asked.request.tools = std::make_shared<const serve::OfferedTools>(serve::OfferedTools{.list = *tools, .only = {}});
  add_media(sample.shard, sample.members, model, asked.request);
  return asked;
}

} // namespace fvlm::cli
