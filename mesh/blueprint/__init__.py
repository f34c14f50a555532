"""Blueprints: one content-addressed, signed file that states what runs, and the checks before anything in it is used.

postcard       the encoding, strict         circuit, body, settings   what a blueprint states
container      header, sections, payloads   certificate, revocation   who may sign, and for how long
signature      keys and both signatures     verification              the one order of the checks
"""
