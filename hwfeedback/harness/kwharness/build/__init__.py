"""From a candidate's text to objects that can be loaded.

builder_client is the referee's side, with object_cache, build_requests and reports (what compilers
say). What reads foreign text or runs a compiler (source, artifacts, own_files, compilers,
torch_extension, sass) is for a sandboxed worker. headers are what candidates may include, in
include/kw.

Side: both.
Imported by: export, referee, standalone, workers.
"""
