// container.cpp: opens a container through FFmpeg's demuxers, with limits on what an untrusted file may cost.
#include "container.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <vector>

namespace fvlm::plugins {
namespace {

using sdk::Failure;

constexpr int buffer_bytes = 64 << 10;

// The allow-list of decoders. FFmpeg has hundreds of others, which would only add attack surface.
constexpr AVCodecID codecs[] = {AV_CODEC_ID_H264,       AV_CODEC_ID_HEVC,       AV_CODEC_ID_VP8,   AV_CODEC_ID_VP9,
                                AV_CODEC_ID_AV1,        AV_CODEC_ID_MPEG4,      AV_CODEC_ID_MJPEG, AV_CODEC_ID_H263,
                                AV_CODEC_ID_MPEG1VIDEO, AV_CODEC_ID_MPEG2VIDEO, AV_CODEC_ID_PRORES};

// A file may refer to other files by path or URL. None of them is opened.
int refuse_to_open(AVFormatContext*, AVIOContext**, const char*, int, AVDictionary**) {
  return AVERROR(EPERM);
}

const int32_t* display_matrix(const AVStream& stream) {
#if LIBAVCODEC_VERSION_INT >= AV_VERSION_INT(60, 30, 100)
  const AVPacketSideData* data = av_packet_side_data_get(
      stream.codecpar->coded_side_data, stream.codecpar->nb_coded_side_data, AV_PKT_DATA_DISPLAYMATRIX);
  return data && data->size >= 9 * sizeof(int32_t) ? reinterpret_cast<const int32_t*>(data->data) : nullptr;
#else
  size_t size = 0;
  const uint8_t* data = av_stream_get_side_data(&stream, AV_PKT_DATA_DISPLAYMATRIX, &size);
  return data && size >= 9 * sizeof(int32_t) ? reinterpret_cast<const int32_t*>(data) : nullptr;
#endif
}

} // namespace

void throw_error(const char* action, int code) {
  char text[AV_ERROR_MAX_STRING_SIZE] = "";
  av_strerror(code, text, sizeof text);
  // Out of memory is FVLM_ERROR_DATA as well: it means that the file asked for more than av_max_alloc() allows.
  throw Failure(FVLM_ERROR_DATA, "%s: %s", action, text);
}

void check_frame_size(int width, int height, int64_t max_pixels) {
  if (int64_t{width} * height > max_pixels)
    throw Failure(FVLM_ERROR_DATA, "frames of %d x %d pixels exceed the limit of %lld pixels", width, height,
                  static_cast<long long>(max_pixels));
}

const char* find_demuxer(const char* format) {
  if (!format) return nullptr;
  for (const char* name : {"mp4", "m4v", "mov"})
    if (std::strcmp(format, name) == 0) return "mov";
  for (const char* name : {"webm", "mkv"})
    if (std::strcmp(format, name) == 0) return "matroska";
  return nullptr;
}

Container::Container(const fvlm_video_query& query, const fvlm_video_file& file, bool details) : file_(file) {
  try {
    open(query, details);
  } catch (...) {
    close();
    throw;
  }
}

Container::~Container() {
  close();
}

void Container::close() {
  avformat_close_input(&format_);
  if (input_) av_freep(&input_->buffer);
  avio_context_free(&input_);
}

void Container::open(const fvlm_video_query& query, bool details) {
  const char* demuxer = find_demuxer(query.format);
  if (!demuxer)
    throw Failure(FVLM_ERROR_UNSUPPORTED, "file extension .%s not supported", query.format ? query.format : "");
  auto* buffer = static_cast<unsigned char*>(check_allocated(av_malloc(buffer_bytes)));
  input_ = avio_alloc_context(buffer, buffer_bytes, 0, this, read_bytes, nullptr, seek);
  if (!input_) av_free(buffer);
  check_allocated(input_);
  format_ = check_allocated(avformat_alloc_context());
  format_->pb = input_;
  format_->io_open = refuse_to_open;
  format_->interrupt_callback = {[](void* self) {
                                   const fvlm_video_file& lent = static_cast<Container*>(self)->file_;
                                   return static_cast<int>(lent.stop(lent.context) != 0);
                                 },
                                 this};
  format_->max_streams = 64;
  format_->probesize = 1 << 20;
  const int opened = avformat_open_input(&format_, "", av_find_input_format(demuxer), nullptr);
  check_cancelled();
  check("not a file of this format", opened);

  for (unsigned i = 0; i < format_->nb_streams; ++i) {
    AVStream* stream = format_->streams[i];
    const bool pictures =
        stream->codecpar->codec_type == AVMEDIA_TYPE_VIDEO && (stream->disposition & AV_DISPOSITION_ATTACHED_PIC) == 0;
    if (pictures && !stream_) stream_ = stream;
    stream->discard = stream == stream_ ? AVDISCARD_DEFAULT : AVDISCARD_ALL;
  }
  if (!stream_) throw Failure(FVLM_ERROR_DATA, "no video stream");
  const AVCodecParameters& parameters = *stream_->codecpar;
  if (std::find(std::begin(codecs), std::end(codecs), parameters.codec_id) == std::end(codecs))
    throw Failure(FVLM_ERROR_DATA, "codec %s not supported", avcodec_get_name(parameters.codec_id));
  check_frame_size(parameters.width, parameters.height, query.most_pixels);
  // The header of an mp4 file has all parameters, except for some codecs.
  if ((details && std::strcmp(demuxer, "mov") != 0) || parameters.width < 1) read_stream_info(query.most_pixels);
}

void Container::read_stream_info(int64_t max_pixels) {
  std::vector<AVDictionary*> options(format_->nb_streams, nullptr);
  for (AVDictionary*& each : options) {
    av_dict_set(&each, "threads", "1", 0);
    av_dict_set_int(&each, "max_pixels", 2 * max_pixels + (1 << 16), 0);
  }
  const int found = avformat_find_stream_info(format_, options.data());
  for (AVDictionary*& each : options) av_dict_free(&each);
  check_cancelled();
  check("reading the first packets", found);
  check_frame_size(stream_->codecpar->width, stream_->codecpar->height, max_pixels);
}

void Container::check_cancelled() const {
  if (read_failed_) throw Failure(FVLM_ERROR_DEVICE, "the file could not be read");
  if (file_.stop(file_.context)) throw Failure(FVLM_ERROR_DATA, "cancelled");
}

int Container::read_bytes(void* self, uint8_t* into, int count) {
  auto& container = *static_cast<Container*>(self);
  const fvlm_video_file& file = container.file_;
  if (container.offset_ >= file.size || count <= 0) return AVERROR_EOF;
  if (file.stop(file.context)) return AVERROR_EXIT;
  const uint64_t here = std::min<uint64_t>(static_cast<uint64_t>(count), file.size - container.offset_);
  if (file.read(file.context, container.offset_, into, here)) {
    container.read_failed_ = true;
    return AVERROR(EIO);
  }
  container.offset_ += here;
  return static_cast<int>(here);
}

int64_t Container::seek(void* self, int64_t offset, int whence) {
  auto& container = *static_cast<Container*>(self);
  const auto size = static_cast<int64_t>(container.file_.size);
  whence &= ~AVSEEK_FORCE;
  if (whence == AVSEEK_SIZE) return size;
  if (whence == SEEK_CUR) offset += static_cast<int64_t>(container.offset_);
  if (whence == SEEK_END) offset += size;
  if (offset < 0) return AVERROR(EINVAL);
  container.offset_ = static_cast<uint64_t>(offset);
  return offset;
}

double Container::seconds() const {
  if (stream_->duration != AV_NOPTS_VALUE) return std::max(0.0, time(first_pts_ + stream_->duration));
  if (format_->duration != AV_NOPTS_VALUE) return std::max(0.0, static_cast<double>(format_->duration) / AV_TIME_BASE);
  return 0;
}

int Container::quarter_turns() const {
  const int32_t* matrix = display_matrix(*stream_);
  if (!matrix) return 0;
  const double counterclockwise = av_display_rotation_get(matrix);
  if (!std::isfinite(counterclockwise)) return 0;
  return (static_cast<int>(std::lround(-counterclockwise / 90)) % 4 + 4) % 4;
}

int64_t Container::pts(double seconds) const {
  // Rounded up a little, so that pts -> seconds -> pts is the identity.
  const double units = seconds / av_q2d(stream_->time_base) + 1e-6;
  return first_pts_ + (units < 1e18 ? static_cast<int64_t>(std::floor(units)) : int64_t{1} << 60);
}

double Container::time(int64_t pts) const {
  return static_cast<double>(pts - first_pts_) * av_q2d(stream_->time_base);
}

bool Container::read(AVPacket& packet) {
  while (true) {
    check_cancelled();
    av_packet_unref(&packet);
    const int code = av_read_frame(format_, &packet);
    check_cancelled();
    if (code == AVERROR_EOF) return false;
    check("reading a packet", code);
    if (packet.flags & AV_PKT_FLAG_CORRUPT) return false; // the file is truncated within this packet
    if (packet.stream_index == stream_->index) return true;
  }
}

std::optional<int64_t> Container::keyframe_before(int64_t pts) const {
  const int entry = av_index_search_timestamp(stream_, pts, AVSEEK_FLAG_BACKWARD);
  const AVIndexEntry* key = entry < 0 ? nullptr : avformat_index_get_entry(stream_, entry);
  return key ? std::optional(key->timestamp) : std::nullopt;
}

bool Container::seek_to_keyframe(int64_t key) {
  const bool there = av_seek_frame(format_, stream_->index, key, AVSEEK_FLAG_BACKWARD) >= 0;
  check_cancelled();
  return there;
}

} // namespace fvlm::plugins
