// What both emulators know of bfloat16.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

inline float as_float(std::uint16_t bits) {
    const std::uint32_t word = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
}

// Rounded to the nearest, as the device does.
inline std::uint16_t as_bfloat16(float value) {
    std::uint32_t word;
    std::memcpy(&word, &value, 4);
    if (std::isnan(value)) return 0x7fff;
    return static_cast<std::uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
}
