#include "data/samples/objects.h"

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "data/boxes.h"
#include "data/samples/error_context.h"
#include "data/samples/frames.h"
#include "data/samples/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>

namespace fvlm {
namespace {

using Json = nlohmann::json;

struct NamedUnit {
  Objects::Unit unit;
  const char* name;
  double far; // the image's far side; 0: in pixels
};
constexpr std::array<NamedUnit, 3> units{{{Objects::Unit::pixels, "real", 0},
                                          {Objects::Unit::norm1000, "norm1000", 1000},
                                          {Objects::Unit::norm1, "norm1", 1}}};

const NamedUnit& named(Objects::Unit unit) {
  return units[static_cast<size_t>(unit)];
}

// A list in the object; null where it is missing, or what a table has in the place of what is missing.
const Json* list_in(const Json& value, const char* key, const std::string& name) {
  const auto found = value.find(key);
  if (found == value.end() || found->is_null()) return nullptr;
  if (!found->is_array()) wrong_type(fmt::format("'{}' of {}", key, name), *found, "a list");
  return &*found;
}

Objects::Unit unit_in(const Json& value, const std::string& name) {
  const auto found = value.find("bbox_type");
  if (found == value.end() || found->is_null()) return Objects::Unit::pixels;
  const std::string& type = text_in(*found, fmt::format("'bbox_type' of {}", name));
  const auto unit = std::ranges::find_if(units, [&](const NamedUnit& each) { return each.name == type; });
  if (unit == units.end())
    broken(
        fmt::format("'bbox_type' of {} is '{}', and real, norm1000 or norm1 was expected", name, type.substr(0, 40)));
  return unit->unit;
}

Box box_in(const Json& value, const std::string& name) {
  Box box;
  if (!value.is_array()) wrong_type(name, value, "a list of numbers");
  for (const Json& number : value) {
    if (!number.is_number()) wrong_type(fmt::format("a number of {}", name), number, "a number");
    box.place.push_back(number.get<double>());
  }
  if (box.place.size() != 2 && box.place.size() != 4)
    broken(fmt::format("{} has {}, and a point has 2 and a box 4", name, counted(std::ssize(box.place), "number")));
  return box;
}

class Writer {
 public:
  Writer(const Objects& objects, std::optional<plan::BoxForm> form, const FindBoxedImage& find)
      : objects_(objects), form_(form), find_(find) {
    if (!form_ && !objects.boxes.empty())
      throw Error(ErrorKind::recipe,
                  "a sample has boxes, and the decoder's family is not known to write them in any way")
          .advise("say how: boxes = \"norm1000\" in the mix, or another form of recipes/REFERENCE.md");
  }

  void write(std::vector<Conversation>& talks) {
    std::vector<size_t> shared;
    for (const Conversation& talk : talks) shared.push_back(&talk == &talks[0] ? 0 : shared_turns(talks[0], talk));
    std::vector<std::string*> texts;
    for (size_t i = 0; i < talks.size(); ++i)
      for (size_t turn = shared[i]; turn < talks[i].turns.size(); ++turn) add_texts(talks[i].turns[turn], texts);
    require_count(object_name_mark, std::ssize(objects_.names), texts);
    require_count(box_mark, std::ssize(objects_.boxes), texts);
    for (std::string* text : texts) *text = filled(*text);
    for (size_t i = 0; i < talks.size(); ++i)
      for (size_t turn = 0; turn < talks[i].turns.size(); ++turn)
        if (turn < shared[i])
          talks[i].turns[turn] = talks[0].turns[turn];
        else
          finish(talks[i].turns[turn]);
  }

 private:
  // How many of the turns before its last answer are those of the first one.
  static size_t shared_turns(const Conversation& first, const Conversation& talk) {
    const auto answer =
        std::find_if(talk.turns.rbegin(), talk.turns.rend(), [](const Turn& turn) { return turn.role == "assistant"; });
    const auto before = static_cast<size_t>(talk.turns.rend() - answer);
    size_t shared = 0;
    while (shared + 1 < before && shared < first.turns.size() && first.turns[shared].role == talk.turns[shared].role &&
           first.turns[shared].text == talk.turns[shared].text)
      ++shared;
    return shared;
  }

  static void add_texts(Turn& turn, std::vector<std::string*>& texts) {
    if (turn.parts.empty()) texts.push_back(&turn.text);
    for (TurnPart& part : turn.parts) texts.push_back(&part.text);
  }

  static void require_count(std::string_view mark, int64_t expected, const std::vector<std::string*>& texts) {
    int64_t found = 0;
    for (const std::string* text : texts)
      for (size_t at = 0; (at = text->find(mark, at)) != std::string::npos; at += mark.size()) ++found;
    if (found == expected) return;
    broken(fmt::format("its texts have {} {}, and '{}' of its objects is a list of {}", found, mark,
                       mark == box_mark ? "bbox" : "ref", expected));
  }

  std::string filled(std::string_view text) {
    std::string out;
    for (;;) {
      const size_t at = std::min(text.find(object_name_mark), text.find(box_mark));
      out += text.substr(0, at);
      if (at == std::string_view::npos) return out;
      const bool is_box = text.substr(at).starts_with(box_mark);
      out += is_box ? next_box() : next_name();
      text.remove_prefix(at + (is_box ? box_mark : object_name_mark).size());
    }
  }

  std::string next_name() {
    const std::string& name = objects_.names[names_++];
    return form_ ? box_name_text(*form_, name) : name;
  }

  std::string next_box() {
    const Box& box = objects_.boxes[boxes_];
    if (!images_.contains(box.image)) images_[box.image] = find_(box.image);
    const BoxedImage& image = images_[box.image];
    if (*form_ == plan::BoxForm::pixels && !image.resized)
      throw Error(ErrorKind::recipe, "boxes = \"pixels\" counts pixels of an image that is resized as a whole, and the "
                                     "encoder's image processor pads or crops it")
          .advise("set boxes = \"norm1000\" or another form in the mix");
    const double far = named(objects_.unit).far;
    const auto side = [&](int64_t own, int64_t resized) {
      return BoxSide{far > 0 ? far : static_cast<double>(own), static_cast<double>(resized)};
    };
    const ImageSize resized = image.resized.value_or(ImageSize{});
    const std::array sides{side(image.own.width, resized.width), side(image.own.height, resized.height)};
    return box_text(*form_, inside(box, sides), sides);
  }

  // Annotations may be rounded to a pixel outside.
  std::vector<double> inside(const Box& box, const std::array<BoxSide, 2>& sides) {
    const std::string name = fmt::format("bbox {} of its objects, [{}],", boxes_++, fmt::join(box.place, ", "));
    const double slack = objects_.unit == Objects::Unit::pixels ? 1 : 0;
    std::vector<double> place = box.place;
    for (size_t i = 0; i < place.size(); ++i) {
      const double far = sides[i % 2].own;
      if (!(place[i] >= -slack && place[i] <= far + slack))
        broken(slack > 0 ? fmt::format("{} is outside of image {}, which has {} x {} pixels", name, box.image,
                                       sides[0].own, sides[1].own)
                         : fmt::format("{} is outside of its image: with bbox_type {} coordinates are from 0 to {}",
                                       name, named(objects_.unit).name, far));
      place[i] = std::clamp(place[i], 0.0, far);
    }
    if (place.size() == 4 && (place[0] > place[2] || place[1] > place[3]))
      broken(name + " ends before it begins: a box is [x1, y1, x2, y2], its upper left and its lower right corner");
    return place;
  }

  // What the form's tokens spell is the tokens; the text of several parts is that of all.
  void finish(Turn& turn) const {
    if (form_) turn.tokens = box_tokens(*form_);
    if (turn.parts.empty()) return;
    turn.text.clear();
    for (const TurnPart& part : turn.parts) turn.text += part.text;
  }

  const Objects& objects_;
  const std::optional<plan::BoxForm> form_;
  const FindBoxedImage& find_;
  std::map<int64_t, BoxedImage> images_; // that boxes were of
  size_t names_ = 0, boxes_ = 0;         // that are written
};

} // namespace

bool is_objects(const Json& value) {
  return value.is_object() && (value.contains("bbox") || value.contains("ref"));
}

Objects parse_objects(const Json& value, const std::string& name) {
  if (!value.is_object()) wrong_type(name, value, "an object with 'ref' and 'bbox'");
  Objects objects{.unit = unit_in(value, name)};
  if (const Json* names = list_in(value, "ref", name))
    for (const Json& each : *names) objects.names.push_back(text_in(each, fmt::format("a 'ref' of {}", name)));
  const Json* boxes = list_in(value, "bbox", name);
  for (size_t i = 0; boxes && i < boxes->size(); ++i)
    objects.boxes.push_back(box_in((*boxes)[i], fmt::format("bbox {} of {}", i, name)));
  const Json* images = list_in(value, "image_id", name);
  if (!images || images->empty()) return objects;
  if (images->size() != objects.boxes.size())
    broken(fmt::format("'image_id' of {} is a list of {}, and 'bbox' one of {}", name, images->size(),
                       objects.boxes.size()));
  for (size_t i = 0; i < images->size(); ++i) {
    const Json& image = (*images)[i];
    if (!image.is_number_unsigned())
      broken(fmt::format("an 'image_id' of {} is {}, and images are numbered from 0", name,
                         image.is_number() ? image.dump() : image.type_name()));
    objects.boxes[i].image = static_cast<int64_t>(std::min<uint64_t>(image.get<uint64_t>(), INT32_MAX));
  }
  return objects;
}

FindBoxedImage boxed_images(const Shard& shard, const ShardSample& sample, const FramePreparation& frames) {
  return [&shard, &frames, found = find_frames(sample)](int64_t image) {
    if (found.media.kind != Media::Kind::images) broken("its objects have boxes, and it has no image that they are of");
    const int64_t images = std::ssize(found.media.members);
    if (image >= images)
      broken(fmt::format("a box of its objects is of image {}, counted from 0, and it has {}", image,
                         counted(images, "image")));
    const Member& member = found.media.members[static_cast<size_t>(image)];
    const auto bytes = read_image(shard, member);
    return with_member_context(member, [&] {
      const ImageSize own = FramePreparation::size_of(bytes);
      return BoxedImage{own, frames.resized_size(own, images)};
    });
  };
}

std::vector<double> in_pixels(const Objects& objects, size_t box, const ImageSize& image) {
  const double far = named(objects.unit).far;
  std::vector<double> place = objects.boxes[box].place;
  for (size_t i = 0; i < place.size() && far > 0; ++i)
    place[i] *= static_cast<double>(i % 2 == 0 ? image.width : image.height) / far;
  return place;
}

void write_objects(const Objects& objects, std::optional<plan::BoxForm> form, const FindBoxedImage& find,
                   std::vector<Conversation>& talks) {
  Writer(objects, form, find).write(talks);
}

} // namespace fvlm
