// Retrieval samples: the tokens and frames of each input, as /v1/embeddings reads them.
#include "base/error.h"
#include "base/text.h"
#include "data/samples/error_context.h"
#include "data/samples/frames.h"
#include "data/samples/input_content.h"
#include "data/samples/sample_reader.h"
#include "data/video_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm {

// The pictures of the sample itself, which its own fields or its members in a tar are, are those of a positive that has
// nothing else.
Sample SampleReader::measure_inputs(const Shard& shard, ShardSample members, const Parts& parts,
                                    const plan::Source& source) const {
  if (visual_rows_.max_bytes > 0)
    broken("it is a query with what it is to find, and a model that reads the bytes of texts embeds none");
  const std::vector<InputContent> contents = parse_inputs(parts, mix_, visual_rows_);
  const auto has_field = [](const InputContent& content) { return !content.is_missing; };
  const bool names_pictures =
      std::ranges::any_of(contents, [](const InputContent& content) { return !content.media.empty(); });
  if (shard.names_media() && (!names_pictures || !std::ranges::all_of(contents, has_field)))
    add_named_media(shard, parts, members);
  if (std::ranges::all_of(contents, has_field) && !names_pictures &&
      find_frames(members).media.kind != Media::Kind::none)
    throw Error(ErrorKind::data, "it has pictures, and its query and what that is to find are texts")
        .advise(
            "the source's fields = { query_image = \"image\" } or { positive_image = \"image\" } says whose they are");
  Sample sample{.key = members.key,
                .source = parts.text("source").value_or(source.name),
                .rows_per_frame = visual_rows_.per_frame};
  for (const InputContent& content : contents) {
    ShardSample own{.key = members.key, .number = members.number};
    if (content.is_missing)
      own = members;
    else if (!content.media.empty() && !shard.names_media())
      throw Error(ErrorKind::data, "{} names a picture, and in a shard of files KEY.jpg alone is read", content.name)
          .advise("leave the positive out where KEY.jpg is the positive; JSON lines and Parquet name any pictures");
    else if (shard.names_media())
      add_named_media(shard, parts, content.media, own);
    const auto input =
        std::make_shared<Sample>(measure_input(shard, own, content, parts.count("frame_count"), source.text_only()));
    input->source = sample.source;
    sample.frames += input->frames;
    sample.truncated_tokens += input->truncated_tokens;
    sample.exceeds_frames = input->exceeds_frames;
    if (!input->dropped.empty()) {
      sample.dropped = fmt::format("{}: {}", content.name, input->dropped);
      sample.inputs.clear();
      return sample;
    }
    sample.inputs.push_back(input);
  }
  return sample;
}

Sample SampleReader::measure_input(const Shard& shard, const ShardSample& members, const InputContent& content,
                                   std::optional<int64_t> told, bool text_only) const {
  Sample sample{.key = members.key, .role = content.role, .rows_per_frame = visual_rows_.per_frame};
  std::vector<Turn> turns = content.conversation.turns;
  FoundFrames found = find_frames(members);
  const bool is_shown = found.media.kind != Media::Kind::none;
  if (content.is_missing && !is_shown) broken(fmt::format("{} is missing, and it has no picture either", content.name));
  if (!content.is_missing) told = is_shown ? std::nullopt : std::optional<int64_t>(0);
  if (visual_rows_.in_place && is_shown) mention(found, sample, turns, "");
  const bool has_times = has_video_text(found);
  if (has_times) {
    count_frames(shard, members, std::move(found), told, text_only, sample);
    write_video(turns, video_text(sample.media.times, sample.media.seconds));
  }
  SampleText& text = sample.texts.emplace_back();
  if (content.text) {
    const bool cuts = mix_.overlong == plan::Overlong::truncate;
    auto read = embedding_tokens_.of(*content.text,
                                     cuts ? static_cast<size_t>(mix_.max_text_tokens) : EmbeddingTokens::any_number);
    text.ids = std::move(read.ids);
    sample.truncated_tokens = static_cast<int64_t>(read.removed);
  } else {
    text.ids = chat_.prompt(turns, content.conversation.system);
  }
  text.answer_mask.assign(text.ids.size(), 0);
  if (!has_times) count_frames(shard, members, std::move(found), told, text_only, sample);
  if (visual_rows_.in_place && sample.dropped.empty()) place_visual_rows(sample);
  if (sample.dropped.empty()) limit(text, sample);
  if (sample.dropped.empty() && text.ids.empty()) broken(fmt::format("{} has no token to embed", content.name));
  return sample;
}

} // namespace fvlm
