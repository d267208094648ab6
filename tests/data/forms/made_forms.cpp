#include "made_forms.h"

#include "../media/gif.h"

#include <algorithm>
#include <zlib.h>
#include <zstd.h>

namespace fvlm::test {
namespace {

using Json = nlohmann::json;

constexpr int64_t image_size = 8;

struct MadeSample {
  std::vector<std::string> media; // files, by their names in the folder of media
  std::string question, answer;
};

std::string picture(int number, int part) {
  std::string png = write_png(plain_image(9 + part, 7, static_cast<uint8_t>(10 * number),
                                          static_cast<uint8_t>(100 * part), static_cast<uint8_t>(200 - number)));
  return number == 6 ? png.substr(0, png.size() / 2) : png;
}

// Every third sample has two images, every third an animation, of which the first frame is read; numbers 8 and 16 are
// text alone.
MadeSample made_sample(int number, const fs::path& media) {
  fs::create_directories(media);
  MadeSample sample{{}, fmt::format("which is {}?", number), number == 9 ? "" : fmt::format("number {}", number)};
  const auto add = [&](const std::string& name, const std::string& bytes) {
    write_bytes(media / name, bytes);
    sample.media.push_back(name);
  };
  if (number == 8 || number == 16) return sample;
  if (number % 3 == 2) {
    add(fmt::format("{:03}.gif", number), gif_of(6, 5, {number % 4, 3, 1}, 100));
    return sample;
  }
  for (int part = 0; part <= (number % 3 == 1 ? 1 : 0); ++part)
    add(fmt::format("{:03}{}.png", number, "ab"[part]), picture(number, part));
  return sample;
}

std::string marks(const MadeSample& sample) {
  std::string text;
  for (size_t i = 0; i < sample.media.size(); ++i) text += "<image>\n";
  return text;
}

Json media_of(const MadeSample& sample, const std::string& before) {
  Json media = Json::array();
  for (const std::string& name : sample.media) media.push_back(before + name);
  return media;
}

// As LLaVA writes a sample, as others do its messages, and as plain fields.
Json as_conversation(int number, const MadeSample& sample, const std::string& before) {
  Json json{
      {"id", number},
      {"conversations",
       {{{"from", "human"}, {"value", marks(sample) + sample.question}}, {{"from", "gpt"}, {"value", sample.answer}}}}};
  if (sample.media.size() == 1) json["image"] = before + sample.media[0];
  if (sample.media.size() > 1) json["image"] = media_of(sample, before);
  return json;
}

Json as_messages(int number, const MadeSample& sample, const std::string& before) {
  Json content = Json::array();
  for (const std::string& name : sample.media) content.push_back({{"type", "image"}, {"image", before + name}});
  content.push_back({{"type", "text"}, {"text", sample.question}});
  return {{"id", number},
          {"messages",
           {{{"role", "user"}, {"content", content}},
            {{"role", "assistant"}, {"content", {{{"type", "text"}, {"text", sample.answer}}}}}}}};
}

Json as_fields(const MadeSample& sample) {
  return {{"user", sample.question}, {"assistant", sample.answer}};
}

void write_folder(const fs::path& folder) {
  for (int i = 0; i < made_samples; ++i) {
    const MadeSample sample = made_sample(i, folder / "media");
    const std::string key = fmt::format("{:03}", i);
    fs::create_directories(folder / "samples" / key.substr(0, 2));
    const fs::path base = folder / "samples" / key.substr(0, 2);
    Json json = as_fields(sample);
    if (sample.media.empty()) json["frame_count"] = 0;
    write_bytes(base / (key + ".json"), json.dump());
    for (size_t part = 0; part < sample.media.size(); ++part) {
      std::string ending = fs::path(sample.media[part]).extension().string();
      if (ending == ".gif") ending = ".png"; // by this name it is an image, and by its own a video
      const std::string number = sample.media.size() > 1 ? fmt::format(".{:03}", part) : "";
      fs::copy_file(folder / "media" / sample.media[part], base / (key + number + ending));
    }
  }
  fs::remove_all(folder / "media");
}

} // namespace

const std::vector<std::string>& made_forms() {
  static const std::vector<std::string> forms = {"jsonl",    "json",      "folder", "imagefolder",
                                                 "jsonl.gz", "jsonl.zst", "parquet"};
  return forms;
}

std::string gzip(std::string_view bytes) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstandard(std::string_view bytes) {
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), 3));
  return out;
}

fs::path write_form(const std::string& form, const fs::path& folder) {
  fs::create_directories(folder);
  if (form == "parquet") {
    fs::copy_file(fs::path(FVLM_FORMS) / "samples.parquet", folder / "samples.parquet",
                  fs::copy_options::overwrite_existing);
    return folder / "samples.parquet";
  }
  if (form == "folder") {
    write_folder(folder);
    return folder / "samples";
  }
  std::string lines, list = "[\n";
  for (int i = 0; i < made_samples; ++i) {
    const MadeSample sample = made_sample(i, folder / "media");
    if (form == "imagefolder") {
      Json json = as_fields(sample);
      if (!sample.media.empty())
        json[sample.media.size() > 1 ? "file_names" : "file_name"] =
            sample.media.size() > 1 ? media_of(sample, "") : Json(sample.media[0]);
      lines += json.dump() + "\n";
      continue;
    }
    lines += (i % 2 ? as_messages(i, sample, "media/") : as_conversation(i, sample, "media/")).dump() + "\n";
    list += (i ? ",\n" : "") + as_conversation(i, sample, "media/").dump(2);
  }
  const fs::path path = folder / ("samples." + form);
  if (form == "imagefolder") {
    write_bytes(folder / "media/metadata.jsonl", lines);
    return folder / "media";
  }
  write_bytes(path, form == "json"        ? list + "\n]\n"
                    : form == "jsonl.gz"  ? gzip(lines)
                    : form == "jsonl.zst" ? zstandard(lines)
                                          : lines);
  return path;
}

uint64_t digest_of(const Shard& shard, int64_t i, std::string& reason) {
  static const Wanted wanted;
  static const SampleReader reader(wanted.mix, byte_tokenizer(), image_size, nullptr);
  const ShardSample members = shard.sample(i);
  try {
    const Sample sample = reader.measure(shard, members, wanted.source);
    std::vector<float> frames(static_cast<size_t>(sample.frames * 3 * image_size * image_size));
    reader.decode(shard, sample, frames);
    Xxh64 hash;
    for (const auto& text : sample.texts) {
      hash.update(std::as_bytes(std::span(text.ids)));
      hash.update(std::as_bytes(std::span(text.answer_mask)));
    }
    hash.update(std::as_bytes(std::span(frames)));
    return hash.value();
  } catch (const ReadError&) {
    throw;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data) << error.text();
    reason = error.text();
    EXPECT_NE(reason.find(shard.path().string()), std::string::npos) << reason;
    EXPECT_NE(reason.find(sample_name(members.key)), std::string::npos) << reason;
    return 0;
  }
}

} // namespace fvlm::test
