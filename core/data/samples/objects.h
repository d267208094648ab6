// Objects of a sample: names, and boxes and points of its images, which take the places of <ref-object> and <bbox> in
// its texts. The form is that of ms-swift's grounding data.
#pragma once
#include "data/media/frame_preparation.h"
#include "data/samples/sample_content.h"
#include "data/shards/shard.h"
#include "recipe/box_form.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

inline constexpr std::string_view object_name_mark = "<ref-object>", box_mark = "<bbox>";

// Whether this is such objects: other data may have other things under the same name.
bool is_objects(const nlohmann::json& value);
// Throws Error(data) without a location.
Objects parse_objects(const nlohmann::json& value, const std::string& name);

// An image that boxes are of: its own size, upright, and that to which it is resized as a whole, if it is.
struct BoxedImage {
  ImageSize own;
  std::optional<ImageSize> resized;
};
using FindBoxedImage = std::function<BoxedImage(int64_t image)>;
// Of the images of a sample, for which `frames` has to outlive it, and the shard. Throws Error(data) without a location
// where there are none, and for a number that none has.
FindBoxedImage boxed_images(const Shard& shard, const ShardSample& sample, const FramePreparation& frames);

// One of the boxes or points in pixels of its image, which is so large.
std::vector<double> in_pixels(const Objects& objects, size_t box, const ImageSize& image);

// Names and boxes in the places of their placeholders, in order, in the turns of all conversations: of a pair and of
// choices those of the turns that all share stand once. `form`: nothing where it is not known. Throws Error(data)
// without a location for a number of placeholders that differs, and for a box outside of its image; Error(recipe) for
// boxes that cannot be written.
void write_objects(const Objects& objects, std::optional<plan::BoxForm> form, const FindBoxedImage& find,
                   std::vector<Conversation>& talks);

} // namespace fvlm
