#include "mutation.h"

#include "sample_maker.h"
#ifdef FVLM_TEST_LIBRARY // the video plugin
#include "data/media/write_mp4.h"
#endif

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <zlib.h>

namespace fvlm::test {
namespace {

Image textured(int64_t width, int64_t height, int shade) {
  Image image{width, height, {}};
  for (int64_t i = 0; i < width * height * 3; ++i) image.rgb.push_back(static_cast<uint8_t>(i * shade + i / 7));
  return image;
}

std::string video([[maybe_unused]] int shade) {
#ifdef FVLM_TEST_LIBRARY
  std::vector<Image> frames{textured(16, 16, shade), textured(16, 16, shade + 1), textured(16, 16, shade + 2)};
  return write_mp4(frames, {.frames_per_second = 1});
#else
  return "no mp4";
#endif
}

class Maker {
 public:
  SyntheticShard shard() {
    for (int round = 0; round < 3; ++round) {
      std::string number = std::to_string(round);
      int shade = 11 + round;
      still("jpg" + number, "jpg", write_jpeg(textured(20, 14, shade), 80));
      still("a/folder/png" + number, "png", write_png(textured(9, 12, shade)));
      Files clip = {
          {"json",
           R"({"conversations":[{"from":"human","value":"<video>\nWhat?"},{"from":"gpt","value":"That."}],"frame_count":3})"}};
      for (int frame = 0; frame < 3; ++frame)
        clip.push_back({fmt::format("{:03}.png", frame), write_png(textured(8, 8, shade + frame))});
      sample("clip" + number, clip);
      std::string pixels;
      for (int i = 0; i < 2 * 8 * 8 * 3; ++i) pixels += static_cast<char>(shade * i);
      sample("array" + number, {{"json", R"({"token_ids":[1,2,3],"loss_mask":[0,1,1],"frame_count":2})"},
                                {"npy", npy("2, 8, 8, 3", pixels)}});
      sample("pair" + number,
             {{"json", R"({"user":"Q","chosen_assistant":"yes","rejected_assistant":"no","frame_count":0})"}});
      sample("choice" + number, {{"json", R"({"user":"Q","choices":["red","blue"],"answer":"B","frame_count":0})"}});
      sample("long/" + std::string(60, 'l') + "/" + std::string(90, 'n') + number,
             {{"json", R"({"messages":[{"role":"user","content":"1"},{"role":"assistant","content":"2"}]})"},
              {"png", write_png(textured(3, 3, shade))}});
      sample("video" + number, {{"json", R"({"caption":"It moves."})"}, {"mp4", video(shade)}});
    }
    return {tar_.end(), std::move(members_)};
  }

 private:
  void still(const std::string& key, const std::string& ending, const std::string& image) {
    sample(key, {{ending, image}, {"txt", "A picture of " + key}});
  }

  void sample(const std::string& key, const Files& files) {
    for (const auto& [name, content] : files) {
      std::string whole = fmt::format("{}.{}", key, name);
      size_t begin = tar_.bytes.size();
      if (whole.size() > 100) {
        std::string record = fmt::format(" path={}\n", whole);
        tar_.file("pax", fmt::format("{}{}", record.size() + 3, record), 'x');
        whole.resize(100);
      }
      size_t header = tar_.file(whole, content);
      members_.push_back({key, begin, header, tar_.bytes.size()});
    }
  }

  TarMaker tar_;
  std::vector<SyntheticMember> members_;
};

std::string png_of_size(uint32_t width, uint32_t height) {
  std::string png = write_png(textured(4, 4, 3));
  for (int i = 0; i < 4; ++i) {
    png[16 + static_cast<size_t>(i)] = static_cast<char>(width >> 8 * (3 - i));
    png[20 + static_cast<size_t>(i)] = static_cast<char>(height >> 8 * (3 - i));
  }
  auto sum = static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(png.data()) + 12, 17));
  for (int i = 0; i < 4; ++i) png[29 + static_cast<size_t>(i)] = static_cast<char>(sum >> 8 * (3 - i));
  return png;
}

std::string jpeg_of_size(uint16_t width, uint16_t height) {
  std::string jpeg = write_jpeg(textured(16, 16, 3), 80);
  size_t frame = jpeg.find("\xff\xc0");
  jpeg[frame + 5] = static_cast<char>(height >> 8);
  jpeg[frame + 6] = static_cast<char>(height & 255);
  jpeg[frame + 7] = static_cast<char>(width >> 8);
  jpeg[frame + 8] = static_cast<char>(width & 255);
  return jpeg;
}

std::string box(const std::string& type, const std::string& content, uint32_t lie = 0) {
  uint32_t size = static_cast<uint32_t>(content.size() + 8) + lie;
  std::string out;
  for (int i = 3; i >= 0; --i) out += static_cast<char>(size >> 8 * i);
  return out + type + content;
}

class Mutation {
 public:
  Mutation(const SyntheticShard& shard, uint64_t seed)
      : shard_(shard), random_(seed * 0x9e3779b97f4a7c15 + 1), bytes_(shard.bytes) {}

  Mutated make() {
    using Kind = void (Mutation::*)();
    static constexpr Kind kinds[] = {&Mutation::flip_bits,        &Mutation::flip_header, &Mutation::cut,
                                     &Mutation::seal_field,       &Mutation::seal_size,   &Mutation::seal_name,
                                     &Mutation::seal_type,        &Mutation::repeat,      &Mutation::lose_sector,
                                     &Mutation::remove,           &Mutation::insert_junk, &Mutation::insert_bad_sample,
                                     &Mutation::insert_bad_sample};
    (this->*kinds[below(std::size(kinds))])();
    if (below(20) == 0) pack();
    return std::move(out_);
  }

 private:
  size_t below(size_t count) { return random_() % count; }
  const SyntheticMember& any() { return shard_.members[below(shard_.members.size())]; }

  void touch(size_t begin, size_t end) {
    for (const auto& [key, from, to] : extents())
      if (begin < to && end > from) out_.touched.insert(key);
  }

  // Of samples: from the first of their blocks to the last.
  std::vector<std::tuple<std::string, size_t, size_t>> extents() const {
    std::vector<std::tuple<std::string, size_t, size_t>> all;
    for (const auto& member : shard_.members) {
      if (all.empty() || std::get<0>(all.back()) != member.key) all.push_back({member.key, member.begin, member.begin});
      std::get<2>(all.back()) = member.end;
    }
    return all;
  }

  void done(std::string what) {
    out_.what = std::move(what);
    out_.bytes = bytes_;
  }

  void flip_bits() {
    size_t count = 1 + below(16);
    for (size_t i = 0; i < count; ++i) {
      size_t at = below(bytes_.size());
      bytes_[at] ^= static_cast<char>(1 << below(8));
      touch(at, at + 1);
    }
    done(fmt::format("{} bits flipped", count));
  }

  void flip_header() {
    size_t at = any().header, count = 1 + below(8);
    for (size_t i = 0; i < count; ++i) bytes_[at + below(512)] ^= static_cast<char>(1 << below(8));
    touch(at, at + 512);
    std::string sealed = bytes_.substr(at, 512);
    seal(sealed, 0);
    if (bytes_.compare(at, 512, sealed) == 0) // they make up for each other
      skip(at, std::strtoull(sealed.substr(124, 11).c_str(), nullptr, 8));
    done(fmt::format("{} bits flipped in the header at {}", count, at));
  }

  void cut() {
    size_t at = below(bytes_.size());
    bytes_.resize(at);
    touch(at, shard_.bytes.size());
    done(fmt::format("cut at {}", at));
  }

  // The members that a wrong size with a correct checksum skips, if it leads to a header or the end: this is
  // undetectable.
  void skip(size_t header, uint64_t size) {
    if (size > bytes_.size()) return;
    size_t next = header + 512 + (size + 511) / 512 * 512;
    bool exactly = next >= shard_.members.back().end;
    for (const auto& member : shard_.members) exactly |= next == member.begin || next == member.header;
    // Zeros inside an array lead on to the next header.
    bool zeros = next + 512 <= bytes_.size() && bytes_.substr(next, 512).find_first_not_of('\0') == std::string::npos;
    if (exactly || zeros) touch(header, next);
  }

  void seal_field() { // any bytes in any field but name, size, type and magic, which have kinds of their own
    size_t at = any().header, field = std::array{100, 108, 116, 136, 265, 297, 329, 337, 345, 500}[below(10)];
    for (size_t i = 0; i < 8; ++i) bytes_[at + field + i] = static_cast<char>(below(256));
    seal(bytes_, at);
    touch(at, at + 512);
    done(fmt::format("bytes at {} of the header at {}", field, at));
  }

  void seal_size() {
    static const std::string sizes[] = {
        TarMaker::base256(uint64_t{1} << 63),
        TarMaker::base256((uint64_t{1} << 63) - 1),
        TarMaker::base256(~uint64_t{0}),
        TarMaker::base256(~uint64_t{0} - 511, '\xff'),
        std::string(12, '\xff'),
        "77777777777",
        "-0000000001",
        "999999999999",
        std::string(12, ' '),
    };
    size_t at = any().header;
    uint64_t number = below(2) ? below(4096) : below(bytes_.size() * 2);
    size_t which = below(std::size(sizes) * 2);
    std::string text = which < std::size(sizes) ? sizes[which] : TarMaker::octal(number);
    bytes_.replace(at + 124, 12, std::string(12, '\0'));
    bytes_.replace(at + 124, text.size(), text);
    seal(bytes_, at);
    touch(at, at + 512);
    if (which >= std::size(sizes)) skip(at, number);
    if (text == std::string(12, ' ')) skip(at, 0);
    done(fmt::format("a size of '{}' in the header at {}", text, at));
  }

  void seal_name() {
    static const std::string names[] = {"../../etc/passwd.json",
                                        "/etc/cron.d/x.json",
                                        "a/../../x.png",
                                        "..",
                                        ".",
                                        "",
                                        "./",
                                        "x",
                                        ".json",
                                        "a.",
                                        "a\nb.json",
                                        "\xff\xfe.json",
                                        std::string(100, 'z'),
                                        "con\x1b[31m.json",
                                        "a//b.json",
                                        "evil.json/"};
    size_t at = any().header;
    const auto& name = names[below(std::size(names))];
    bytes_.replace(at, 100, std::string(100, '\0'));
    bytes_.replace(at, name.size(), name);
    seal(bytes_, at);
    touch(at, at + 512);
    done(fmt::format("another name in the header at {}", at));
  }

  void seal_type() {
    const auto& member = any();
    char type = "123456LKxgSDV7\x01\xff"[below(16)];
    bytes_[member.header + 156] = type;
    seal(bytes_, member.header);
    touch(member.begin, member.end);
    // A folder or a link has no data, an extended header describes the next member, a sparse map may continue: the next
    // member's sample is damaged too.
    if (auto next = std::find_if(shard_.members.begin(), shard_.members.end(),
                                 [&](const auto& other) { return other.begin == member.end; });
        next != shard_.members.end() && std::string_view("LKxgS").find(type) != std::string_view::npos)
      out_.touched.insert(next->key);
    done(fmt::format("type {} in the header at {}", static_cast<int>(type), member.header));
  }

  // A member or a sample stands again right behind itself, or later in the shard.
  void repeat() {
    auto all = extents();
    size_t which = below(all.size());
    auto [key, begin, end] = all[which];
    if (below(2)) { // a member; the first of a sample is the one that counts
      const auto& member = any();
      bytes_.insert(member.end, shard_.bytes, member.begin, member.end - member.begin);
      return done(fmt::format("the member at {} twice", member.begin));
    }
    size_t where = std::get<2>(all[which + below(all.size() - which)]);
    bytes_.insert(where, shard_.bytes, begin, end - begin);
    done(fmt::format("sample {} again at {}", key, where));
  }

  void lose_sector() {
    size_t at = below(2) ? any().header : below(bytes_.size() / 512) * 512;
    char content = std::array{'\0', '\xff', 'x'}[below(3)];
    bytes_.replace(at, 512, std::string(512, content));
    touch(at, at + 512);
    done(fmt::format("the sector at {} is lost", at));
  }

  void remove() {
    size_t sectors = 1 + below(4), at = below(bytes_.size() / 512 - sectors) * 512;
    bool aligned = below(3) > 0;
    size_t size = aligned ? sectors * 512 : 1 + below(511);
    bytes_.erase(at, size);
    touch(at, aligned ? at + size : shard_.bytes.size());
    touch(at > 0 ? at - 1 : 0, at + size + 512);
    // The member that lost these bytes then extends that much further, and may end on a header.
    for (const auto& member : shard_.members)
      if (member.begin <= at && at < member.end) touch(member.end, member.end + size);
    done(fmt::format("{} bytes are gone from {}", size, at));
  }

  size_t boundary() {
    auto all = extents();
    return std::get<1>(all[below(all.size())]);
  }

  void insert_junk() {
    std::string junk;
    size_t size = (1 + below(8)) * 512;
    bool text = below(2);
    for (size_t i = 0; i < size; ++i) junk += static_cast<char>(text ? '0' + below(8) : below(256));
    size_t where = boundary();
    bytes_.insert(where, junk);
    done(fmt::format("{} bytes of junk at {}", size, where));
  }

  void insert_bad_sample() {
    Files files = {{"json", R"({"caption":"evil"})"}};
    switch (below(16)) {
    case 0:
      files.push_back({"png", png_of_size(60000, 60000)});
      break;
    case 1:
      files.push_back({"png", png_of_size(5000, 5000)});
      break;
    case 2:
      files.push_back({"png", png_of_size(0x7fffffff, 1)});
      break;
    case 3:
      files.push_back({"jpg", jpeg_of_size(60000, 60000)});
      break;
    case 4:
      files.push_back({"jpg", jpeg_of_size(5000, 5000)});
      break;
    case 5:
      files.push_back({"jpg", write_jpeg(textured(20, 14, 3), 80).substr(0, 200 + below(300))});
      break;
    case 6:
      files.push_back({"npy", npy("9223372036854775807, 8, 8, 3", "x")});
      break;
    case 7:
      files.push_back({"npy", npy("2, 8, 8, 3", "x")});
      break;
    case 8:
      files.push_back({"mp4", mp4()});
      break;
    case 9:
      files[0].second = nested();
      break;
    case 10:
      files[0].second = "{\"caption\":\"\xff\xfe\"}";
      break;
    case 11:
      files[0].second = R"({"token_ids":[4294967295,-1],"loss_mask":[1,1],"frame_count":0})";
      break;
    case 12:
      files[0].second = R"({"caption":"x","frame_count":9223372036854775807})";
      break;
    case 13:
      files[0].second = R"({"messages":[{"role":"assistant","content":[[[[]]]]}],"frame_count":0})";
      break;
    case 14:
      files.push_back({"0.png", png_of_size(4, 4)}), files.push_back({"999999999999999999999.png", "x"});
      break;
    default:
      mangled(files);
      break;
    }
    TarMaker tar;
    for (const auto& [name, content] : files) tar.file("evil." + name, content);
    if (below(4) == 0) tar.header("evil.link", TarMaker::octal(0), static_cast<char>('1' + below(6)));
    size_t where = boundary();
    bytes_.insert(where, tar.bytes);
    done(fmt::format("a bad sample with {} members at {}", files.size(), where));
  }

  // An image with some bytes changed.
  void mangled(Files& files) {
    bool png = below(2);
    std::string image = png ? write_png(textured(30, 20, 5)) : write_jpeg(textured(30, 20, 5), 85);
    for (size_t i = 1 + below(6); i > 0; --i) image[below(image.size())] = static_cast<char>(below(256));
    files.push_back({png ? "png" : "jpg", image});
  }

  std::string nested() {
    std::string open = below(2) ? "[" : "{\"a\":", text = "{\"caption\":";
    while (text.size() < (size_t{1} << 20)) text += open;
    return text;
  }

  std::string mp4() {
    std::string times(100, '\0');
    for (char& c : times) c = static_cast<char>(below(256));
    uint32_t lie = below(2) ? static_cast<uint32_t>(random_()) : 0;
    return box("ftyp", std::string("isom\0\0\2\0isommp41", 16)) +
           box("moov", box("mvhd", times, lie) + box("trak", box("tkhd", times))) + box("mdat", times, lie);
  }

  void pack() {
    std::string packed(out_.bytes.size() + 1024, '\0');
    z_stream stream{};
    if (deflateInit2(&stream, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) return;
    stream.next_in = reinterpret_cast<Bytef*>(out_.bytes.data());
    stream.avail_in = static_cast<uInt>(out_.bytes.size());
    stream.next_out = reinterpret_cast<Bytef*>(packed.data());
    stream.avail_out = static_cast<uInt>(packed.size());
    int status = deflate(&stream, Z_FINISH);
    packed.resize(stream.total_out);
    deflateEnd(&stream);
    if (status != Z_STREAM_END) return;
    if (below(2)) { // the content of a damaged stream is unpredictable
      packed[10 + below(packed.size() - 10)] ^= static_cast<char>(1 << below(8));
      touch(0, shard_.bytes.size());
      out_.what += ", packed and a bit flipped";
    }
    out_.bytes = std::move(packed);
    out_.packed = true;
  }

  const SyntheticShard& shard_;
  std::mt19937_64 random_;
  std::string bytes_;
  Mutated out_;
};

} // namespace

SyntheticShard made_shard() {
  return Maker().shard();
}

Mutated mutate(const SyntheticShard& shard, uint64_t seed) {
  return Mutation(shard, seed).make();
}

} // namespace fvlm::test
