import sys, os, time
sys.path[:0]=['/work/main/hwfeedback/harness/tests','/work/main/hwfeedback/harness']
from test_honest import Suite
from judging import new_cache
def test_rate(tmp_path_factory):
    s=Suite(new_cache(tmp_path_factory)); t=time.time(); n=0; R=[]
    for _ in range(int(os.environ.get('CALS','6'))):
        s2=s; 
        try: s.calibrations.pop(('solve_pivoting', False), None)
        except AttributeError: pass
        r=s.refused('solve_pivoting', 40); n+=40; R+=r
        print(n, len(R), r[:3], round(time.time()-t), flush=True)
        if time.time()-t>float(os.environ.get('SEC','150')): break
    s.server.close()
