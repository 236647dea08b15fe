"""From a candidate's text to objects that can be loaded.

builder_client is the referee's side, with object_cache, build_requests and reports (what compilers
say). forms has a row for each way to have custom code made; of a row, language, replace and
compile run in a sandboxed worker, as does all that reads foreign text or runs a compiler (source,
artifacts, own_files, compilers, torch_extension, sass), and checked in the referee. headers are
what candidates may include, in include/kw.

Side: both.
Imported by: export, referee, standalone, workers.
"""
