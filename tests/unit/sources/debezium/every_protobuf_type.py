"""A Protobuf schema with a field of every type."""

EVERYTHING = """syntax = "proto3";
package p;
import "google/protobuf/wrappers.proto";
message Before { int32 x = 1; }
message All {
  enum Kind { NONE = 0; ONE = 1; MINUS = -1; }
  message Inner { sint64 a = 1; optional string b = 2; repeated Inner2 more = 3; }
  message Inner2 { fixed32 v = 1; }
  double d = 1; float f = 2; int64 i64 = 3; uint64 u64 = 4; int32 i32 = 5; fixed64 f64 = 6; fixed32 f32 = 7;
  bool flag = 8; string s = 9; bytes b = 12; uint32 u32 = 13; Kind kind = 14; sfixed32 sf32 = 15;
  sfixed64 sf64 = 16; sint32 si32 = 17; sint64 si64 = 18;
  optional int32 o32 = 19; Inner inner = 20; repeated Inner inners = 21; repeated int32 packed = 22;
  repeated int32 unpacked = 23 [packed = false]; repeated string texts = 24; repeated Kind kinds = 25;
  map<string, int64> longs = 26; map<int32, Inner> by_number = 27; google.protobuf.Int64Value wrapped = 28;
  oneof choice { int32 left = 1000; Inner right = 2000; }
  repeated double doubles = 3000;
}
"""
