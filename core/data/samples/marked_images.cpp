#include "data/samples/marked_images.h"

#include "data/media/draw.h"
#include "data/samples/error_context.h"
#include "data/samples/frames.h"
#include "data/samples/input_content.h"
#include "data/samples/named_media.h"
#include "data/samples/objects.h"
#include "data/samples/prompt_content.h"
#include "data/samples/sample_reader.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace fvlm {
namespace {

// The lists of names and boxes are apart, since a name may stand in the question as well.
std::string name_of_box(const Objects& objects, size_t box) {
  const std::vector<std::string>& names = objects.names;
  if (names.size() == objects.boxes.size()) return names[box];
  const bool is_one = !names.empty() && std::ranges::count(names, names.front()) == std::ssize(names);
  return is_one ? names.front() : "";
}

std::vector<Image> images_of(const Shard& shard, const ShardSample& members) {
  const Media media = find_frames(members).media;
  std::vector<Image> images;
  if (media.kind != Media::Kind::images) return images;
  for (const Member& member : media.members) {
    const auto bytes = read_image(shard, member);
    images.push_back(with_member_context(member, [&] { return FramePreparation::decoded(bytes); }));
  }
  return images;
}

} // namespace

MarkedImages SampleReader::marked_images(const Shard& shard, ShardSample members, const plan::Source& source) const {
  return with_sample_context(shard, members.key, [&] {
    const nlohmann::json object = shard.json(members).value_or(nlohmann::json::object());
    const Parts parts(object, source.fields);
    if (has_inputs(parts)) broken("it is a query with what it is to find, whose pictures have no objects");
    if (shard.names_media()) add_named_media(shard, parts, members);
    MarkedImages marked{images_of(shard, members), {}};
    const SampleContent content =
        parse_sample_content(parts, caption_file_of(shard, members), source, mix_, visual_rows_);
    if (!content.objects || marked.images.empty()) return marked;
    const Objects& objects = *content.objects;
    for (size_t i = 0; i < objects.boxes.size(); ++i) {
      const int64_t number = static_cast<int64_t>(i), shown = objects.boxes[i].image;
      if (shown >= std::ssize(marked.images)) continue; // measure() says so
      Image& image = marked.images[static_cast<size_t>(shown)];
      const std::vector<double> place = in_pixels(objects, i, {.height = image.height, .width = image.width});
      draw_mark(image, place, number);
      marked.marks.push_back({number, shown, place, name_of_box(objects, i)});
    }
    return marked;
  });
}

} // namespace fvlm
