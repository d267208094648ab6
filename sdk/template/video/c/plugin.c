/* @NAME@: uncompressed video in plain C: YUV4MPEG2 files in 4:4:4, frames of one size one after the other. A short
 * starting point. fvlm/video.h specifies each function. */
#include <fvlm/video.h>

#include <stdlib.h>
#include <string.h>

/* The header line of a file. */
struct stream {
  int64_t width, height, begin, frames;
  double frame_seconds;
};

static int64_t frame_bytes(const struct stream* stream) {
  return 6 + 3 * stream->width * stream->height; /* "FRAME\n", three planes */
}

static int read_at(const fvlm_video_file* file, int64_t offset, void* into, int64_t count) {
  return file->read(file->context, (uint64_t)offset, into, (uint64_t)count);
}

static fvlm_status open_stream(const fvlm_video_query* query, const fvlm_video_file* file, struct stream* stream,
                               fvlm_error* error) {
  char text[129] = "";
  const int64_t length = file->size < 128 ? (int64_t)file->size : 128;
  if (file->stop(file->context)) return fvlm_fail(error, FVLM_ERROR_DATA, "stopped");
  if (read_at(file, 0, text, length)) return fvlm_fail(error, FVLM_ERROR_DEVICE, "the file could not be read");
  const char* end = strchr(text, '\n');
  if (!end || strncmp(text, "YUV4MPEG2 ", 10) != 0) return fvlm_fail(error, FVLM_ERROR_DATA, "not a YUV4MPEG2 file");

  long numerator = 0, denominator = 0; /* frames per second */
  for (const char* word = strchr(text, ' '); word && word < end; word = strchr(word + 1, ' ')) {
    char* rest = NULL;
    if (word[1] == 'W') stream->width = strtol(word + 2, NULL, 10);
    if (word[1] == 'H') stream->height = strtol(word + 2, NULL, 10);
    if (word[1] == 'F') numerator = strtol(word + 2, &rest, 10);
    if (rest && *rest == ':') denominator = strtol(rest + 1, NULL, 10);
  }
  if (stream->width <= 0 || stream->height <= 0 || stream->height > query->most_pixels / stream->width) {
    return fvlm_fail(error, FVLM_ERROR_DATA, "pictures of %lld x %lld pixels", (long long)stream->width,
                     (long long)stream->height);
  }
  if (numerator <= 0 || denominator <= 0) return fvlm_fail(error, FVLM_ERROR_DATA, "no frames a second");
  stream->frame_seconds = (double)denominator / (double)numerator;
  stream->begin = end - text + 1;
  stream->frames = ((int64_t)file->size - stream->begin) / frame_bytes(stream);
  return stream->frames > 0 ? FVLM_OK : fvlm_fail(error, FVLM_ERROR_DATA, "no frame");
}

static uint8_t clip(double value) {
  return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value + 0.5);
}

static void to_rgb(const uint8_t* yuv, int64_t pixels, uint8_t* rgb) {
  for (int64_t i = 0; i < pixels; ++i) {
    const double y = (yuv[i] - 16) * 255.0 / 219, u = yuv[pixels + i] - 128, v = yuv[2 * pixels + i] - 128;
    rgb[3 * i] = clip(y + 1.596 * v);
    rgb[3 * i + 1] = clip(y - 0.392 * u - 0.813 * v);
    rgb[3 * i + 2] = clip(y + 2.017 * u);
  }
}

/* The functions of the table. */

struct fvlm_instance {
  fvlm_device device;
};

static fvlm_status create(const fvlm_instance_config* config, fvlm_instance** instance, fvlm_error* error) {
  if (!FVLM_HAS(config, host)) return fvlm_fail(error, FVLM_ERROR_ARGUMENT, "config: struct_size is too small");
  *instance = (fvlm_instance*)calloc(1, sizeof **instance);
  if (!*instance) return fvlm_fail(error, FVLM_ERROR_MEMORY, "out of memory");
  (*instance)->device = config->device;
  return FVLM_OK;
}

static void destroy(fvlm_instance* instance) {
  free(instance);
}

static void supports(const fvlm_video_query* query, fvlm_support* support) {
  if (!FVLM_HAS(support, reason)) return;
  if (!FVLM_HAS(query, most_pixels) || !query->format) {
    fvlm_answer(support, 0, "query: struct_size is too small, or no format");
  } else if (strcmp(query->format, "y4m") != 0 || query->most_pixels < 1) {
    fvlm_answer(support, 0, "files that end in .%.32s", query->format);
  } else {
    fvlm_answer(support, 10, "uncompressed frames");
  }
}

static fvlm_status probe(fvlm_instance* instance, const fvlm_video_query* query, const fvlm_video_probe* arguments,
                         fvlm_error* error) {
  (void)instance;
  if (!FVLM_HAS(query, most_pixels) || !FVLM_HAS(arguments, height) || !FVLM_HAS(arguments->file, stop)) {
    return fvlm_fail(error, FVLM_ERROR_ARGUMENT, "probe: struct_size is too small");
  }
  struct stream stream = {0};
  const fvlm_status status = open_stream(query, arguments->file, &stream, error);
  if (status != FVLM_OK) return status;
  *arguments->seconds = (double)stream.frames * stream.frame_seconds;
  *arguments->width = stream.width;
  *arguments->height = stream.height;
  return FVLM_OK;
}

/* `memory` holds a frame as it is in the file, and its pixels. */
static fvlm_status show(const struct stream* stream, const fvlm_video_decode* arguments, uint8_t* memory,
                        fvlm_error* error) {
  const fvlm_video_file* file = arguments->file;
  const int64_t bytes = frame_bytes(stream);
  uint8_t* rgb = memory + bytes;
  int64_t held = -1;
  for (int64_t i = 0; i < arguments->time_count; ++i) {
    const double place = arguments->times[i] / stream->frame_seconds + 1e-6;
    const int64_t frame = place < (double)stream->frames ? (int64_t)place : stream->frames - 1;
    if (file->stop(file->context)) return fvlm_fail(error, FVLM_ERROR_DATA, "stopped");
    if (frame != held) {
      if (read_at(file, stream->begin + frame * bytes, memory, bytes)) {
        return fvlm_fail(error, FVLM_ERROR_DEVICE, "the file could not be read");
      }
      if (memcmp(memory, "FRAME\n", 6) != 0) {
        return fvlm_fail(error, FVLM_ERROR_DATA, "frame %lld is damaged", (long long)frame);
      }
      to_rgb(memory + 6, stream->width * stream->height, rgb);
      held = frame;
    }
    const fvlm_video_picture picture = {sizeof picture, i, stream->width, stream->height, 3 * stream->width, rgb};
    if (arguments->picture(arguments->context, &picture)) return fvlm_fail(error, FVLM_ERROR_DATA, "stopped");
  }
  const double end = (double)stream->frames * stream->frame_seconds;
  const double last = arguments->time_count > 0 ? arguments->times[arguments->time_count - 1] : 0;
  *arguments->seconds = end < last ? end : last;
  return FVLM_OK;
}

static fvlm_status decode(fvlm_instance* instance, const fvlm_video_query* query, const fvlm_video_decode* arguments,
                          fvlm_error* error) {
  (void)instance;
  if (!FVLM_HAS(query, most_pixels) || !FVLM_HAS(arguments, seconds) || !FVLM_HAS(arguments->file, stop)) {
    return fvlm_fail(error, FVLM_ERROR_ARGUMENT, "decode: struct_size is too small");
  }
  struct stream stream = {0};
  fvlm_status status = open_stream(query, arguments->file, &stream, error);
  if (status != FVLM_OK) return status;
  uint8_t* memory = (uint8_t*)malloc((size_t)(2 * frame_bytes(&stream)));
  if (!memory) return fvlm_fail(error, FVLM_ERROR_MEMORY, "out of memory for a picture");
  status = show(&stream, arguments, memory, error);
  free(memory);
  return status;
}

static const fvlm_video_v1 table = {
    .base = {sizeof(fvlm_video_v1), create, destroy},
    .supports = supports,
    .probe = probe,
    .decode = decode,
};

static const void* find_table(const char* kind) {
  return strcmp(kind, FVLM_VIDEO_KIND) == 0 ? &table : NULL;
}

const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host) {
  static const fvlm_plugin plugin = {
      sizeof(fvlm_plugin), FVLM_ABI_MAJOR, FVLM_ABI_MINOR, "@NAME@", "0.1.0", find_table,
  };
  return FVLM_HAS(host, parallel_threads) && host->abi_major == FVLM_ABI_MAJOR ? &plugin : NULL;
}
